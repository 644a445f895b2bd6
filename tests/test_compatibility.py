"""Verdicts on changed schemas, worked out by hand, and the present schemas beside the released ones."""

from typing import Any

import pytest

from tools.compatibility import Verdict, fields_of, judge, present, released, verdicts

_NUMBER = {"type": "number"}
_INTEGER = {"type": "integer"}
_TEXT_OR_NONE = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_LOSS: dict[str, Any] = {"loss": _NUMBER, "note": {"type": "string", "default": ""}}


def verdict(
    old: dict[str, Any], new: dict[str, Any], *, old_needs: str = "loss", new_needs: str = "loss"
) -> Verdict:
    """Of an event whose fields have these schemas; those that are needed, by name."""

    def schema(fields: dict[str, Any], needed: str) -> dict[str, Any]:
        return {"$defs": {"Update": {"type": "object", "properties": fields, "required": needed.split()}}}

    return judge(fields_of(schema(old, old_needs)), fields_of(schema(new, new_needs)))


@pytest.mark.parametrize(
    ("new", "needs", "name", "reason"),
    [
        (_LOSS, "loss", "FULL", None),
        ({"loss": _NUMBER | {"description": "In nats."}, "note": _LOSS["note"]}, "loss", "FULL", None),
        (_LOSS | {"steps": _INTEGER}, "loss", "FULL", "Update.steps added, optional"),
        # Records that are there lack it; an old reader does not look for it.
        (_LOSS | {"steps": _INTEGER}, "loss steps", "FORWARD", "Update.steps added, required"),
        ({"loss": _NUMBER}, "loss", "FULL", "Update.note removed, optional"),
        # An old reader needs it.
        ({"note": _LOSS["note"]}, "", "BACKWARD", "Update.loss removed, required"),
        (_LOSS, "", "BACKWARD", "Update.loss became optional"),
        (_LOSS, "loss note", "FORWARD", "Update.note became required"),
        (
            _LOSS | {"note": _TEXT_OR_NONE},
            "loss",
            "BACKWARD",
            'Update.note changed its type from {"type": "string"} to {"type": "null"} or {"type": "string"}',
        ),
        (
            _LOSS | {"loss": _INTEGER},
            "loss",
            "FORWARD",
            'Update.loss changed its type from {"type": "number"} to {"type": "integer"}',
        ),
        (
            _LOSS | {"loss": {"type": "string"}},
            "loss",
            "NONE",
            'Update.loss changed its type from {"type": "number"} to {"type": "string"}',
        ),
        # Renamed: what was there is not found, and what is new is not there.
        ({"mean_loss": _NUMBER}, "mean_loss", "NONE", "Update.loss removed, required"),
    ],
)
def test_a_change_has_the_verdict_of_who_can_still_read(
    new: dict[str, Any], needs: str, name: str, reason: str | None
) -> None:
    found = verdict(_LOSS, new, new_needs=needs)
    assert found.name == name
    assert found.reasons == [] if reason is None else reason in found.reasons


def test_positions_of_an_array_are_fields() -> None:
    def action(*positions: dict[str, Any], needed: int) -> Any:
        return fields_of({"$defs": {"Action": {"prefixItems": list(positions), "minItems": needed}}})

    two = action(_INTEGER, {"type": "string"}, needed=2)
    assert judge(two, action(_INTEGER, {"type": "string"}, _NUMBER, needed=2)).name == "FULL"
    assert judge(two, action({"type": "string"}, _INTEGER, needed=2)).name == "NONE"


def test_an_event_may_be_new_or_have_an_upcast_but_not_go() -> None:
    fields = fields_of({"$defs": {"Step": {"properties": {"reward": _NUMBER}, "required": ["reward"]}}})
    assert verdicts({"step.v1": fields}, {"step.v2": fields, "other.v1": fields}) == {}
    assert verdicts({"step.v1": fields}, {})["step.v1"].name == "NONE"


def test_readers_before_and_after_this_version_read_every_event() -> None:
    found = verdicts(released(), present())
    assert len(found) >= 19
    assert {event: verdict for event, verdict in found.items() if verdict.name != "FULL"} == {}
