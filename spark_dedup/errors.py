"""Every exception that spark_dedup raises on purpose.

Each class also derives from the built-in that a caller would expect, so `except ValueError` keeps working.
A message says what was wrong, what was found, what is allowed, and (as `hint`) what to do next.
"""

from __future__ import annotations


class SparkDedupError(Exception):
    """Base of all errors below.

    Args:
        message: What was wrong, what was found, what is allowed.
        hint: The next step, printed on a line of its own.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConfigError(SparkDedupError, ValueError):
    """Settings that cannot be used; `problems` lists all of them, not only the first."""

    def __init__(self, problems: list[str], *, hint: str | None = None) -> None:
        super().__init__("\n".join(problems), hint=hint)
        self.problems = list(problems)


class SourceError(SparkDedupError, ValueError):
    """The source table cannot be read as asked: missing table or column, unusable or repeated ids."""


class SchemaError(SparkDedupError, TypeError):
    """A DataFrame is not the table it was taken for."""


class StoreError(SparkDedupError, RuntimeError):
    """The store holds something else than this run may use: other settings, another source, a newer layout."""


class EmbeddingError(SparkDedupError, ValueError):
    """Vectors that no setting can repair: a wrong length, a null inside, an encoder that breaks its contract."""


class EnvironmentProblem(SparkDedupError, RuntimeError):
    """Something that the job needs is not there: a jar, a package, a folder that can be written."""


class ComponentsError(SparkDedupError, RuntimeError):
    """The components engine returned labels that contradict its input; nothing was written."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text: Spark appends plans and stack traces to it. Of an error in Java it is the root cause's."""
    java = getattr(error, "java_exception", None)
    while java is not None and java.getCause() is not None:
        java = java.getCause()
    text = str(error if java is None else java.toString()).strip()
    return text.splitlines()[0] if text else type(error).__name__
