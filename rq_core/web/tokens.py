"""Reads and writes the file of tokens. The holder of a token may use the web page.

    ann operator 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    bob viewer+arguments 60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752

A line has a name, a role and the SHA-256 of the token, never the token itself.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path
from typing import Final, NamedTuple, Self

from rq_core.errors import InvalidOption
from rq_core.model.keys import check_name, is_name

TOKENS_VARIABLE: Final = "RQ_CORE_WEB_TOKENS"
TOKEN_BYTES: Final = 32
"""Number of random bytes in a token."""
VIEWER: Final = "viewer"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"
ROLES: Final = (VIEWER, OPERATOR, ADMIN)
"""The roles. A viewer only looks. An operator also changes jobs, and pauses queues and schedules. An admin also changes
limits and removes schedules. Each role has all rights of the roles before it."""
ARGUMENTS: Final = "+arguments"
"""The suffix of a role in a line of the file, for holders who may also see the contents of jobs."""
_LINE: Final = re.compile(rf"(\S+) ({'|'.join(ROLES)})(\+arguments)? ([0-9a-f]{{64}})")


class Access(NamedTuple):
    """The rights of a person or a program on the web page."""

    name: str
    """The name that the audit log has for the changes of this person or program."""
    see_arguments: bool = False
    """True if the contents of jobs are visible: arguments, results, headers, and messages of errors."""
    role: str = VIEWER
    """One of ROLES."""

    def may(self, role: str) -> bool:
        """Return whether this access includes all rights of ``role``. It includes none if its own role is unknown."""
        return self.role in ROLES and ROLES.index(self.role) >= ROLES.index(role)


class Known(NamedTuple):
    """A line of the file: the holder of a token."""

    access: Access
    digest: str
    """SHA-256 of the token, as hex digits."""

    @property
    def line(self) -> str:
        """The line of the file, as text."""
        access = self.access
        return f"{access.name} {access.role}{ARGUMENTS * access.see_arguments} {self.digest}"

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """Parse a line of the file. Return None if the line is invalid."""
        found = _LINE.fullmatch(line)
        if found is None or not is_name(found[1]):
            return None
        return cls(Access(found[1], see_arguments=bool(found[3]), role=found[2]), found[4])


def token_digest(token: str) -> str:
    """Return the SHA-256 of a token, as hex digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class Tokens:
    """The tokens in the file. The file is read again when it changes, so that a removed token is refused at once."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises InvalidOption if the file or one of its lines cannot be read."""
        self._path = path
        self._stamp: object = None
        self._known: dict[str, Known] = {}
        self._read()

    def by_token(self, token: str) -> Known | None:
        """Return the line with this token; None if the token is unknown.

        The token is compared with every line, so that the time of the comparison reveals nothing.
        """
        wanted, found = token_digest(token), None
        for known in self._current().values():
            if hmac.compare_digest(known.digest, wanted):
                found = known
        return found

    def by_name(self, name: str) -> Known | None:
        """Return the line with this name; None if the name has no token."""
        return self._current().get(name)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._current())

    def _current(self) -> dict[str, Known]:
        try:
            self._read()
        except InvalidOption:
            # A file that cannot be read gives no access.
            return {}
        return self._known

    def _read(self) -> None:
        try:
            status = self._path.stat()
            stamp = status.st_mtime_ns, status.st_size, status.st_ino
            if stamp == self._stamp:
                return
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise _invalid(self._path, f"a file that can be read ({error})") from None
        known = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            each = Known.parse(line.strip())
            if each is None:
                raise _invalid(
                    self._path, f"a file of lines NAME ROLE SHA256 (line {number} is invalid)"
                )
            known[each.access.name] = each
        self._known, self._stamp = known, stamp


def add_token(path: Path, name: str, *, see_arguments: bool = False, role: str = VIEWER) -> str:
    """Give a name a new token, which replaces its old one. Return the token, which is stored nowhere.

    Raises InvalidName. Raises InvalidOption for an unknown role, or if the file cannot be written.
    """
    check_name("token", name)
    if role not in ROLES:
        raise InvalidOption.of("role", role, f"must be one of {', '.join(ROLES)}")
    token = secrets.token_urlsafe(TOKEN_BYTES)
    made = Known(Access(name, see_arguments, role), token_digest(token))
    _write(path, [*_others(path, name), made.line])
    return token


def remove_token(path: Path, name: str) -> bool:
    """Remove the token of a name from the file. Return whether there was one.

    Raises the errors of ``add_token``.
    """
    check_name("token", name)
    lines = _lines(path)
    left = _others(path, name)
    if len(left) == len(lines):
        return False
    _write(path, left)
    return True


def _others(path: Path, name: str) -> list[str]:
    return [line for line in _lines(path) if line.partition(" ")[0] != name]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid(path, f"a file that can be read ({error})") from None


def _write(path: Path, lines: list[str]) -> None:
    """Replace the file at once, so that a reader sees either the old file or the new one."""
    made = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:  # noqa: PTH123
            file.write("".join(f"{line}\n" for line in lines))
        made.replace(path)
    except OSError as error:
        raise _invalid(path, f"a file that can be written ({error})") from None


def _invalid(path: Path, must: str) -> InvalidOption:
    return InvalidOption.of("tokens", str(path), f"must be {must}")
