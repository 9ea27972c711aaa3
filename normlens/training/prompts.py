"""The bundled contrast sets: ``python -m normlens.training.prompts data/prompts``.

``ioi``: two names, one of which does something for the other (indirect object
identification, 2211.00593). The corrupted prompt has the other name as its subject, which
exchanges answer and wrong answer. Every name, object and place is one token with its
leading space for GPT-2 and for SmolLM2.

``pronouns``: the pronoun that agrees with a gendered noun. The corrupted prompt has
the noun of the other gender. Each pair appears in both directions, so a model that always
prefers one gender scores one half. All words are frequent in the training books and one
token for the bundled tokenizer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from normlens.atomic import atomic_file
from normlens.text.prompt_sets import PromptText

IOI_TEMPLATES = {
    "gave": "When {first} and {second} went to the {place}, {subject} gave a {object} to",
    "working": "While {first} and {second} worked at the {place}, {subject} gave a {object} to",
    "found": "Friends {first} and {second} found a {object} at the {place}. {subject} gave it to",
    "got": "After {first} and {second} got a {object} at the {place}, {subject} gave it to",
    "then": "Then, {first} and {second} had a long day at the {place}. {subject} gave a ring to",
}
IOI_PAIRS_PER_ORDER = 10
IOI_NAMES = (
    "Mary", "John", "Alice", "Tom", "Sarah", "James", "Emily", "Robert", "Anna", "Paul",
    "Kate", "Mark", "Laura", "David", "Rachel", "Peter", "Lisa", "Daniel", "Helen", "Simon",
)  # fmt: skip
IOI_OBJECTS = ("drink", "ring", "book", "letter", "ball", "key", "flower", "bottle", "map", "bag")
IOI_PLACES = (
    "store",
    "garden",
    "school",
    "office",
    "house",
    "station",
    "park",
    "library",
    "market",
)

SUBJECT, POSSESSIVE = (" he", " she"), (" his", " her")
PRONOUN_TEMPLATES = {
    "said": ("The {noun} said that", SUBJECT),
    "asked": ("The {noun} asked if", SUBJECT),
    "because": ("The {noun} was very tired, because", SUBJECT),
    "when": ("The {noun} was very happy when", SUBJECT),
    "until": ("The {noun} waited until", SUBJECT),
    "then": ("The {noun} came into the room, and then", SUBJECT),
    "shook": ("The old {noun} shook", POSSESSIVE),
    "held": ("The {noun} held out", POSSESSIVE),
    "turned": ("The {noun} turned", POSSESSIVE),
}
PRONOUN_NOUNS = (
    ("king", "queen"), ("man", "woman"), ("boy", "girl"), ("father", "mother"),
    ("brother", "sister"), ("son", "daughter"), ("uncle", "aunt"), ("gentleman", "lady"),
    ("prince", "princess"), ("husband", "wife"),
)  # fmt: skip


def ioi() -> Iterator[PromptText]:
    """Every template in both orders of the two names (ABBA and BABA)."""
    count = len(IOI_NAMES)
    number = 0
    for template, pattern in IOI_TEMPLATES.items():
        for order in ("ABBA", "BABA"):
            for _ in range(IOI_PAIRS_PER_ORDER):
                a = IOI_NAMES[number % count]
                # Steps of 1, 3, 5, ...: pairs of names repeat only after a cycle of steps.
                b = IOI_NAMES[(number + 1 + 2 * (number // count)) % count]
                first, second = (a, b) if order == "ABBA" else (b, a)
                words = {
                    "first": first,
                    "second": second,
                    "object": IOI_OBJECTS[number % len(IOI_OBJECTS)],
                    "place": IOI_PLACES[number % len(IOI_PLACES)],
                }
                yield PromptText(
                    id=f"ioi-{number:03d}",
                    template=f"{template}-{order}",
                    clean=pattern.format(subject=b, **words),
                    corrupted=pattern.format(subject=a, **words),
                    answer=f" {a}",
                    wrong=f" {b}",
                )
                number += 1


def pronouns() -> Iterator[PromptText]:
    """Every template with every pair of nouns, in both directions."""
    number = 0
    for template, (pattern, answers) in PRONOUN_TEMPLATES.items():
        for nouns in PRONOUN_NOUNS:
            for clean in (0, 1):
                yield PromptText(
                    id=f"pronouns-{number:03d}",
                    template=template,
                    clean=pattern.format(noun=nouns[clean]),
                    corrupted=pattern.format(noun=nouns[1 - clean]),
                    answer=answers[clean],
                    wrong=answers[1 - clean],
                )
                number += 1


SETS = {"ioi": ioi, "pronouns": pronouns}


def write_prompt_sets(out: Path) -> None:
    """Write every set as ``<name>.jsonl`` into ``out``; existing ones are replaced.

    Raises:
        OutputError: ``out`` cannot be written.
    """
    for name, make in SETS.items():
        with atomic_file(out / f"{name}.jsonl") as temporary:
            lines = [json.dumps(asdict(prompt), ensure_ascii=False) for prompt in make()]
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_prompt_sets(Path(sys.argv[1]))
