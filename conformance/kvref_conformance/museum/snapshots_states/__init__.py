"""Faults of state slots in a snapshot cache: leaks, slots of others, drafts, aborts, resets, namespaces."""

from kvref_conformance.museum.snapshots_states.slots import (
    AbortKeepsTheState,
    BlockBehindTheLast,
    FinishKeepsTheState,
    ForksShareAState,
    RefusesBeforeEvicting,
    RowOfAnEarlierBatch,
    SlotOfPadding,
    StatesOfDraftsKept,
)
from kvref_conformance.museum.snapshots_states.steps import (
    AbortPublishesItsStep,
    AcceptsAnyNumber,
    CopiedBackAtABoundary,
    DraftsInsertedEarly,
    RefusedRequestKeepsAState,
    ResetKeepsStates,
    ResetUnderStates,
    RollbackLeavesTheState,
    SavesBehindItsStep,
    SavesWhatWasRejected,
    SecondAdmissionReplacesTheState,
    StatesOfEveryNamespace,
)

__all__ = [
    "AbortKeepsTheState",
    "AbortPublishesItsStep",
    "AcceptsAnyNumber",
    "BlockBehindTheLast",
    "CopiedBackAtABoundary",
    "DraftsInsertedEarly",
    "FinishKeepsTheState",
    "ForksShareAState",
    "RefusedRequestKeepsAState",
    "RefusesBeforeEvicting",
    "ResetKeepsStates",
    "ResetUnderStates",
    "RollbackLeavesTheState",
    "RowOfAnEarlierBatch",
    "SavesBehindItsStep",
    "SavesWhatWasRejected",
    "SecondAdmissionReplacesTheState",
    "SlotOfPadding",
    "StatesOfDraftsKept",
    "StatesOfEveryNamespace",
]
