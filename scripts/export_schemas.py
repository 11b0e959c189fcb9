"""Write `schemas/`: the JSON Schemas of what crosses our borders, the contract for other languages.

.venv/bin/python scripts/export_schemas.py
"""

import json
from pathlib import Path
from typing import Any

from flowstate_local.batch import BatchResult, BatchTask
from flowstate_local.events import EVENT
from flowstate_local.nodes import IndexLine, Node
from flowstate_local.protocol import StepOutput
from flowstate_local.repository import EvidenceRecord, RequestRecord
from flowstate_local.task_events import TASK_EVENT, TaskRecord
from flowstate_local.task_state import TaskState
from flowstate_local.tasks.workflow_file import json_schema

FOLDER = Path(__file__).parent.parent / "schemas"


def schemas() -> dict[str, dict[str, Any]]:
    """File name -> schema."""
    models = {
        "step_output": StepOutput,
        "node": Node,
        "index_line": IndexLine,
        "evidence_record": EvidenceRecord,
        "request_record": RequestRecord,
        "task_record": TaskRecord,
        "task_state": TaskState,
        "batch_task": BatchTask,
        "batch_result": BatchResult,
    }
    found = {f"{name}.json": model.model_json_schema() for name, model in models.items()}
    return found | {
        "event.json": EVENT.json_schema(),
        "task_event.json": TASK_EVENT.json_schema(),
        "workflow.json": json_schema(),
    }


def dump(schema: dict[str, Any]) -> str:
    """As it is written: sorted, so that a diff shows what changed."""
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, schema in schemas().items():
        (FOLDER / name).write_text(dump(schema))
        print(f"schemas/{name}")
