"""A language model that chooses an element of a shop's page, where the shopper's rules find none.

The shop's texts are hostile: they may contain instructions. The model's answer is therefore one number among elements
that the shopper permits; any other answer is none. The account of the purchase pays for the calls, up to a maximum.
"""

import json
import tomllib
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import structlog
from pydantic import AliasPath, ConfigDict, Field

from app.core import money
from app.core.foreign import ForeignModel
from app.core.strict_json import parse_response
from app.errors import ServiceError
from app.gateway import call
from app.identity.principal import KeyKind, Principal
from app.ports.shopper import ElementQuestion
from app.shopping.models import Purchase
from app.state import app_state

MAX_QUESTIONS = 5
# Models that reason spend most of it before the answer.
_MAX_TOKENS_OUT = 1_000
_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ModelAdviser:
    """The model for one purchase: asked a few times at most, within a maximum of US dollars."""

    purchase_id: str
    payer: Principal
    model: str
    left_nanos: int
    left_questions: int = MAX_QUESTIONS
    timeout_seconds: int = 20

    def choose(self, question: ElementQuestion) -> tuple[int | None, int]:
        """Return the index of the chosen candidate, None for no choice or a failed call, and the cost of the call."""
        if not self.left_questions:
            return None, 0
        self.left_questions -= 1
        try:
            status, body, cost_nanos = call.chat(
                self.payer, self.model, _body(question), max_cost_nanos=self.left_nanos,
                timeout_seconds=self.timeout_seconds,
            )  # fmt: skip
        except ServiceError as refusal:
            _log.info("shopper_model_not_asked", purchase_id=self.purchase_id, code=refusal.code)
            return None, 0
        self.left_nanos -= cost_nanos
        if status != HTTPStatus.OK:
            _log.info("shopper_model_failed", purchase_id=self.purchase_id, status=status)
            return None, cost_nanos
        return parse_choice(body, len(question.candidates)), cost_nanos


def adviser(purchase: Purchase, key_id: str | None) -> ModelAdviser | None:
    """Return the model for a purchase, None if none is configured or the key is unknown that pays."""
    settings = app_state().settings
    if not settings.shopper_model or key_id is None:
        return None
    kind, agent_id = (KeyKind.AGENT, purchase.account_id) if purchase.wallet_id else (KeyKind.GATEWAY, None)
    payer = Principal(kind, key_id, purchase.account_id, agent_id)
    max_nanos = money.nanos_from_usd(settings.shopper_model_max_usd)
    return ModelAdviser(purchase.id, payer, settings.shopper_model, max_nanos)


class _Completion(ForeignModel):
    content: str = Field(validation_alias=AliasPath("choices", 0, "message", "content"))


class _Choice(ForeignModel):
    model_config = ConfigDict(extra="forbid")

    choice: int


def parse_choice(body: bytes, count: int) -> int | None:
    """Return the index that a chat completion chose among so many, None unless it is exactly `{"choice": n}`."""
    try:
        content = _Completion.read(parse_response(body)).content
        chosen = _Choice.read(parse_response(content.encode())).choice
    except ValueError:
        return None
    return chosen - 1 if 0 < chosen <= count else None


def _body(question: ElementQuestion) -> dict[str, Any]:
    elements = [{"number": number, **asdict(item)} for number, item in enumerate(question.candidates, 1)]
    texts = {
        "system": _TEXTS["instructions"].format(task=_TEXTS["tasks"][question.purpose.value]),
        "user": json.dumps({"page": question.page, "elements": elements}),
    }
    messages = [{"role": role, "content": content} for role, content in texts.items()]
    options = {"max_completion_tokens": _MAX_TOKENS_OUT, "response_format": {"type": "json_object"}}
    return {"messages": messages, **options}
