"""The name of an emitted backend, and the files and Go identifiers that are made of it.

Everything that Go sees at the top level of the host's package has the name in it, so that two programs live side by
side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from simulator.common.errors import InputError

# Backends that the host has or had, and files of its package that the emitted ones would replace.
TAKEN = frozenset(
    ("roofline", "trained-physics", "blackbox", "crossmodel", "trained-roofline", "kernel-lookup", "latency", "config",
     "register", "stepml")
)  # fmt: skip
# of Go
KEYWORDS = frozenset(
    ("break", "case", "chan", "const", "continue", "default", "defer", "else", "fallthrough", "for", "func", "go",
     "goto", "if", "import", "interface", "map", "package", "range", "return", "select", "struct", "switch", "type",
     "var")
)  # fmt: skip
LONGEST = 40  # characters
TEST = "_test.go"  # how the name of a backend's test file ends
_SHAPE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class BackendName:
    """The name under which the host registers a backend. Raises InputError for a name that cannot be one.

    >>> name = Name("my-fit")
    >>> name.exported, name.private, name.stem, name.of("safeDiv")
    ('MyFit', 'myFit', 'myfit', 'myFitSafeDiv')
    """

    registered: str

    def __post_init__(self) -> None:
        if not _SHAPE.fullmatch(self.registered) or len(self.registered) > LONGEST:
            raise InputError(
                f"--name {self.registered}: is not a backend's name: use at most {LONGEST} lower case letters, digits "
                "and single hyphens, beginning with a letter"
            )
        if self.registered in TAKEN or self.stem in {name.replace("-", "") for name in TAKEN}:
            raise InputError(f"--name {self.registered}: is a name of the host's own: choose another")
        if self.registered in KEYWORDS:
            raise InputError(f"--name {self.registered}: is a keyword of Go: choose another")

    @property
    def exported(self) -> str:
        """The Go type: `MyFit`."""
        return "".join(part[0].upper() + part[1:] for part in self.registered.split("-"))

    @property
    def private(self) -> str:
        """The prefix of what the package keeps to itself: `myFit`."""
        return self.exported[0].lower() + self.exported[1:]

    @property
    def stem(self) -> str:
        """The beginning of file names: `myfit`. Without underscores, because Go reads `_linux` or `_test` as a rule."""
        return self.registered.replace("-", "")

    @property
    def source_file(self) -> str:
        """`myfit.go`, with the type, its constructors and the formulas."""
        return f"{self.stem}.go"

    @property
    def test_file(self) -> str:
        """`myfit_test.go`, with the recorded times."""
        return f"{self.stem}{TEST}"

    @property
    def deployments_file(self) -> str:
        """`myfit_deployments.go`, for deployments with curves or for many."""
        return f"{self.stem}_deployments.go"

    @property
    def trees_file(self) -> str:
        """`myfit_trees.go`, for the program's ensemble of trees."""
        return f"{self.stem}_trees.go"

    @property
    def facts_file(self) -> str:
        """`myfit_facts.go`, for facts that follow from the host's configuration."""
        return f"{self.stem}_facts.go"

    @property
    def kernels_file(self) -> str:
        """`myfit_kernels.go`, for curves that follow from it."""
        return f"{self.stem}_kernels.go"

    @property
    def tables_file(self) -> str:
        """`myfit_tables.go`, for the measured kernels of the curves."""
        return f"{self.stem}_tables.go"

    @property
    def some_files(self) -> tuple[str, ...]:
        """The Go files that not every program has."""
        return self.deployments_file, self.trees_file, self.facts_file, self.kernels_file, self.tables_file

    def of(self, identifier: str) -> str:
        """The private Go identifier with the name in front: `safeDiv` -> `myFitSafeDiv`."""
        return self.private + identifier[0].upper() + identifier[1:]

    def fill(self, template: str) -> str:
        """The template with `<Name>`, `<name>`, `<stem>` and `<registered>` replaced."""
        for mark, text in (
            ("<Name>", self.exported),
            ("<name>", self.private),
            ("<stem>", self.stem),
            ("<registered>", self.registered),
        ):
            template = template.replace(mark, text)
        return template


DEFAULT = BackendName("fitted")
