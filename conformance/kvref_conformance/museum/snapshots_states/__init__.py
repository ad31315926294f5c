"""Faults of state slots in a snapshot cache: leaks, slots of others, drafts, aborts, resets, namespaces."""

from kvref_conformance.museum.snapshots_states.drafts import (
    AcceptsAnyNumber,
    BlocksOfDraftsPublished,
    CopiedBackAtABoundary,
    DraftsInsertedEarly,
    RollbackLeavesTheState,
    SavesWhatWasRejected,
)
from kvref_conformance.museum.snapshots_states.slots import (
    AbortKeepsTheState,
    AbortLetsGoTwice,
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
    ExtendedInFlight,
    RefusedRequestKeepsAState,
    ResetKeepsStates,
    ResetUnderStates,
    SavesBehindItsStep,
    SecondAdmissionReplacesTheState,
    StatesOfEveryNamespace,
    StatesOfEveryVersion,
)

__all__ = [
    "AbortKeepsTheState",
    "AbortLetsGoTwice",
    "AbortPublishesItsStep",
    "AcceptsAnyNumber",
    "BlockBehindTheLast",
    "BlocksOfDraftsPublished",
    "CopiedBackAtABoundary",
    "DraftsInsertedEarly",
    "ExtendedInFlight",
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
    "StatesOfEveryVersion",
]
