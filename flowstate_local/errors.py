"""Every exception of the project, as one tree.

    FlowStateError
    ├─ UsageError        the caller's mistake; never retryable
    │  ├─ UnknownModel     no catalogue entry, hub id or folder of that name
    │  ├─ BadSpaceName     a space name that no store accepts
    │  ├─ UnknownTask      no task, step or version of that name or number
    │  ├─ WorkflowError    a workflow that can't run: names file, line and step
    │  └─ IllegalTransition  what was asked of a task can't follow on where it stands
    ├─ EngineError       the model did not answer as asked
    │  ├─ EngineUnavailable  not installed, not started, not reachable (retryable)
    │  ├─ PromptTooLong      the prompt leaves no room for a step in the model's window
    │  └─ OutputTruncated    the model's output is empty, cut off or not a step; nothing was committed (retryable)
    ├─ GrammarError      a schema that no grammar can hold: names tool, path and keyword
    ├─ ModelError        weights that could not be had
    │  ├─ HashMismatch       bytes arrived that are not the catalogue's
    │  ├─ SourceUnavailable  no source of the file answered (retryable)
    │  └─ CacheUnwritable    the cache folder is read-only or its disk is full
    ├─ StoreError        the repository could not do what was asked
    │  ├─ ConflictError      another writer was first (retryable)
    │  ├─ StoreFull          the commit did not fit; nothing was written
    │  ├─ StoreBusy          another process runs a request in this space, or the task (retryable)
    │  ├─ UnknownVersion     written by a newer release
    │  └─ CorruptValue       bytes that no longer match their hash or form
    └─ ToolError         kind, message and retryable as the tool reported them

A refusal by ISU or PSA is not an exception: it is a value (`isu.Rejection`) that the model reads.
"""


class FlowStateError(Exception):
    """Root of the tree. `retryable`: may the same call succeed later? `hint`: what the reader can do."""

    retryable: bool = False
    hint: str = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


class UsageError(FlowStateError):
    """The caller asked for something that can't be right."""


class UnknownModel(UsageError):
    """The name is neither in the catalogue, nor a folder, nor a hub id."""

    hint = "`flowstate model list` shows the names; a local folder or a hub id (owner/name) works too."


class BadSpaceName(UsageError):
    """The name of a space is empty, too long, or holds a character no store accepts."""

    hint = "Use 1 to 200 bytes of UTF-8 without '/', NUL or control characters."


class UnknownTask(UsageError):
    """There's no such task, step or version."""

    hint = "`flowstate task ls` lists the tasks, `flowstate task show ID` the steps and versions of one."


class WorkflowError(UsageError):
    """A workflow that can't run.

    Attributes:
        line: where in the file, from 1; 0 if it didn't come from a file.
        step: the step it is about, or "".
    """

    def __init__(self, message: str, *, line: int = 0, step: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.line = line
        self.step = step


class IllegalTransition(UsageError):
    """What was asked of a task can't follow on where it stands; nothing was written."""


class EngineError(FlowStateError):
    """The engine failed, or answered with something that is not a completion."""


class EngineUnavailable(EngineError):
    """The engine isn't installed, didn't start, or can't be reached."""

    retryable = True
    hint = "`flowstate doctor` says which engines this machine can run."


class PromptTooLong(EngineError):
    """The prompt leaves too few tokens of the model's window for one step."""

    hint = "Shorten the request, give fewer tools, or use a model with a larger window."


class OutputTruncated(EngineError):
    """The output was cut off, empty or no step at all; nothing of it was committed."""

    retryable = True
    hint = "Raise max_tokens, or use the guidance profile, whose bounds make a cut impossible."


class GrammarError(FlowStateError):
    """A schema asks for what the grammar can't enforce.

    Attributes:
        tool: name of the tool, or "" for the protocol itself.
        path: JSON pointer into the tool's parameters, such as "/properties/city".
        keyword: the offending JSON Schema keyword.
    """

    def __init__(
        self, message: str, *, tool: str = "", path: str = "", keyword: str = "", hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.tool = tool
        self.path = path
        self.keyword = keyword


class ModelError(FlowStateError):
    """Weights could not be fetched, checked or converted."""


class HashMismatch(ModelError):
    """A source delivered bytes whose SHA-256 is not the catalogue's; they were deleted."""

    hint = "The source is broken or hostile. Try another with --source, or fetch again."


class SourceUnavailable(ModelError):
    """No source of the file could be reached."""

    retryable = True
    hint = "Check the network, or copy the file by hand and pass its folder with --model."


class CacheUnwritable(ModelError):
    """The cache folder can't be written, or its disk has too little room."""

    hint = "Free disk space, or set XDG_CACHE_HOME to a writable folder on a larger disk."


class StoreError(FlowStateError):
    """The store could not do what was asked."""


class ConflictError(StoreError):
    """Another writer committed first; nothing was written. Read again and retry."""

    retryable = True


class StoreFull(StoreError):
    """The commit did not fit and the map could not grow; nothing was written."""

    hint = "Free disk space, or open the store with a larger map_size (bytes)."


class StoreBusy(StoreError):
    """Another process is running a request in this space."""

    retryable = True
    hint = "Wait for it to finish, or use another space."


class UnknownVersion(StoreError):
    """The store or a value in it was written by a newer release."""

    hint = "Upgrade flowstate-local; nothing was changed."


class CorruptValue(StoreError):
    """A stored value no longer matches its hash, or can't be read back."""

    hint = "`flowstate memory verify` lists all such values; restore them from a backup."


class ToolError(FlowStateError):
    """A tool failed in a way it could describe; raise it inside a tool to say more than a message.

    Attributes:
        kind: short machine-readable kind, such as "timeout" or "not_found".
    """

    def __init__(self, message: str, *, kind: str = "error", retryable: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
