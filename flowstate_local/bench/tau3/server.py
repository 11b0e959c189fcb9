"""The models beside the one under test: whoever plays the user or judges, on an OpenAI-compatible server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Server:
    """A model on a server."""

    url: str
    """Up to and including /v1."""
    model: str
    api_key: str = "EMPTY"
    temperature: float = 0.0
    timeout_s: float = 600.0
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Of each request, such as {"chat_template_kwargs": {"enable_thinking": False}}."""

    def for_litellm(self) -> dict[str, Any]:
        """How tau2's user simulator is told."""
        arguments: dict[str, Any] = {
            "api_base": self.url,
            "api_key": self.api_key,
            "temperature": self.temperature,
            "timeout": self.timeout_s,
        }
        if self.extra_body:
            arguments["extra_body"] = dict(self.extra_body)
        return {"llm": f"openai/{self.model}", "llm_args": arguments}
