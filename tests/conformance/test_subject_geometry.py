"""What the report on kvfit says of it, with a few configs of its own making."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from subject_hosts import open_subject

from kvref_conformance.contracts import Failed
from kvref_conformance.host import Host, Session
from kvref_conformance.programs.models import model_of


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """kvfit in an environment of its own."""
    found = open_subject("kvfit")
    yield found
    found.close()


def size(
    host: Host, family: str, *numbers: int, element_bytes: int = 2
) -> tuple[dict[str, Any], dict[str, int]]:
    """What kvfit says of 100 tokens of a made-up model, and what is right."""
    model = model_of(family, numbers)
    assert model is not None
    session: Session = host.open("cache_geometry")
    found = session.do("size", config=json.dumps(model.config), num_tokens=100, element_bytes=element_bytes)
    return found, model.sizes(100, element_bytes)


@pytest.mark.parametrize(
    ("family", "numbers"),
    [
        ("llama", (4, 3, 72)),
        ("types", (16, 3, 24, 1, 0, 1)),
        ("latent", (3, 96, 16)),
        ("indexed", (96, 16, 24, 1, 0, 1)),
        ("compressed", (72, 16, 24, 4, 128, 0)),
        ("globally", (2, 16, 2, 24, 1, 0, 1, 1, 0)),
        ("interval", (4, 8, 1, 64, 2, 2, 16, 24)),
    ],
)
def test_kvfit_is_right_about_what_it_was_checked_for(
    host: Host, family: str, numbers: tuple[int, ...]
) -> None:
    """At two bytes an element."""
    found, due = size(host, family, *numbers)
    assert found == due


def test_kvfit_takes_the_window_of_gemma_for_that_of_every_layer(host: Host) -> None:
    """Nothing grows then."""
    found, due = size(host, "gemma", 7, 16, 3, 24)
    assert found["bytes_per_token"] == 0 < due["bytes_per_token"]


def test_kvfit_halves_the_convolutions_under_entries_of_a_byte(host: Host) -> None:
    """They are activations in every engine."""
    found, due = size(host, "interval", 4, 8, 1, 64, 2, 2, 16, 24, element_bytes=1)
    assert 2 * found["conv_bytes"] == due["conv_bytes"]


def test_kvfit_refuses_what_it_does_not_know(host: Host) -> None:
    """Kimi Linear is such a model."""
    with pytest.raises(Failed, match="not yet modeled"):
        size(host, "kimi", 96, 16, 4, 24, 1, 0)
