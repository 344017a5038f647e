"""The screen of a run that measured loaders: titled sections of lines, a pure function of it."""

from __future__ import annotations

from dataclasses import replace

from rich.text import Text

from microbench.report import words
from microbench.report.loading.joint import Joint, joints
from microbench.report.loading.joint_table import joint_sentences, joint_table
from microbench.report.loading.loaders_table import TITLE, loaders_table
from microbench.report.training.screen import Section, table_sections, training_sections
from microbench.results import Run


def loading_sections(run: Run, width: int, *, details: bool = False) -> list[Section]:
    """Loaders alone; then, where recipes were measured too, those alone and both together.

    `details` adds what a screen of trainings has for each of them.
    """
    pictures = joints(run)
    together = {t.case.key for joint in pictures for t in joint.trainings}
    apart = replace(run, trainings=tuple(t for t in run.trainings if t.case.key not in together))
    sections: list[Section] = [(TITLE, loaders_table(run, width))]
    if apart.trainings:
        sections += table_sections(apart, width, "Recipes alone")
    for joint in pictures:
        sections += [(_title(joint), joint_table(joint, width)), ("In short", _sentences(joint))]
    if details and pictures:
        fed = replace(run, trainings=tuple(t for joint in pictures for t in joint.trainings))
        sections += training_sections(fed, width, details=True)
    return sections


def _title(joint: Joint) -> str:
    case = joint.trainings[0].case
    return (
        f"Together: {words.clean(case.network)}, batch {case.batch}, loader "
        f"{words.clean(joint.loader)}"
    )


def _sentences(joint: Joint) -> list[Text]:
    return [
        Text(sentence, "" if sentence.startswith(" ") else "bold")
        for sentence in joint_sentences(joint)
    ]
