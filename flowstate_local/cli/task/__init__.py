"""`flowstate task`: durable tasks. Each file holds the commands of one kind, or what they share."""

from flowstate_local.cli.task import deciding, running, showing
from flowstate_local.cli.task.options import app

__all__ = ["app", "deciding", "running", "showing"]
