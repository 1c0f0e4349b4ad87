"""A typed client of the controller's HTTP API."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec
from msgspec import Struct

from malletrain.errors import (
    MalleTrainError,
    NoControllerError,
    UnknownJobError,
    UsageError,
    UserError,
)
from malletrain.live.requests import Explanation, LogPage, NodeCount, Submission, Submitted
from malletrain.live.state_dir import StateDir
from malletrain.live.views import ClusterView, JobView, NodeView

TIMEOUT_S = 10.0

_T = TypeVar("_T")


class _Refusal(Struct, frozen=True):
    error: str


class Client:
    """What the CLI asks of the controller; every failure is an error with one clear line."""

    def __init__(self, http: httpx.Client, absence: str) -> None:
        self._http = http
        #: What to say when nobody answers.
        self._absence = absence

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.close()

    def state(self) -> ClusterView:
        return self._get("/v1/state", ClusterView)

    def jobs(self) -> list[JobView]:
        return self._get("/v1/jobs", list[JobView])

    def job(self, job: str) -> JobView:
        return self._get(f"/v1/jobs/{_quoted(job)}", JobView)

    def nodes(self) -> list[NodeView]:
        return self._get("/v1/nodes", list[NodeView])

    def explain(self, job: str) -> Explanation:
        return self._get(f"/v1/jobs/{_quoted(job)}/explain", Explanation)

    def logs(self, job: str, *, after: LogPage | None = None, lines: int | None = None) -> LogPage:
        """Read on after a page, or the last `lines`."""
        given: dict[str, object] = {"lines": lines}
        if after is not None:
            given = {"worker": after.worker, "offset": after.offset}
        query = {name: str(value) for name, value in given.items() if value is not None}
        return self._get(f"/v1/jobs/{_quoted(job)}/logs", LogPage, query)

    def submit(self, submission: Submission) -> Submitted:
        return self._send("POST", "/v1/jobs", Submitted, body=submission)

    def order(self, job: str, verb: str) -> None:
        """Have a job cancelled, suspended or resumed."""
        self._send("POST", f"/v1/jobs/{_quoted(job)}/{verb}", Any)

    def add_nodes(self, count: int) -> None:
        self._send("POST", "/v1/nodes", Any, body=NodeCount(count=count))

    def remove_node(self, node_id: str, *, is_abrupt: bool) -> None:
        query = {"abrupt": "true" if is_abrupt else "false"}
        self._send("DELETE", f"/v1/nodes/{_quoted(node_id)}", Any, query)

    def shutdown(self) -> None:
        self._send("POST", "/v1/shutdown", Any)

    def _get(self, path: str, kind: type[_T], query: dict[str, str] | None = None) -> _T:
        return self._send("GET", path, kind, query)

    def _send(
        self,
        method: str,
        path: str,
        kind: type[_T],
        query: dict[str, str] | None = None,
        body: object = None,
    ) -> _T:
        content = None if body is None else msgspec.json.encode(body)
        try:
            answer = self._http.request(method, path, params=query, content=content)
        except httpx.TimeoutException as error:
            raise NoControllerError(
                f"the controller at {self._http.base_url} did not answer within {TIMEOUT_S:.0f} s: "
                f"see whether its machine is overloaded, then try again"
            ) from error
        except httpx.TransportError as error:
            raise NoControllerError(self._absence) from error
        if answer.is_error:
            raise _refused(answer)
        try:
            return msgspec.json.decode(answer.content or b"null", type=kind)
        except msgspec.DecodeError as error:
            raise MalleTrainError(
                f"the controller at {self._http.base_url} gave an answer to {path} that this "
                f"version does not understand ({error}): use the same version for both"
            ) from error


def connect(state_dir: StateDir, timeout_s: float = TIMEOUT_S) -> Client:
    """Return a client of the state directory's controller.

    Raises:
        NoControllerError: none was started there.
        StateDirError: its endpoint or token cannot be read.
    """
    start = f"start one: malletrain up --state-dir {state_dir.path}"
    endpoint = state_dir.endpoint()
    if endpoint is None:
        raise NoControllerError(f"no controller runs for {state_dir.path}; {start}")
    http = httpx.Client(
        base_url=endpoint.url,
        headers={"Authorization": f"Bearer {state_dir.token()}"},
        timeout=timeout_s,
        trust_env=False,  # a proxy must not see the token
    )
    absence = (
        f"no controller answers at {endpoint.url} (process {endpoint.pid}, by "
        f"{state_dir.endpoint_path}); its jobs are in the journal; {start}"
    )
    return Client(http, absence)


def _quoted(part: str) -> str:
    return quote(part, safe="")


def _refused(answer: httpx.Response) -> MalleTrainError:
    try:
        line = msgspec.json.decode(answer.content, type=_Refusal).error
    except msgspec.DecodeError:
        line = f"status {answer.status_code} from {answer.request.url}"
    match answer.status_code:
        case 400 | 413:
            return UsageError(line)
        case 404 if "/v1/jobs/" in str(answer.request.url):
            return UnknownJobError(line)
        case 401 | 403:
            return UserError(f"the controller refused the token of this state directory: {line}")
        case 503:
            return UserError(f"not now: {line}")
        case code if code >= 500:
            return MalleTrainError(f"the controller failed: {line}; see its log")
    return UserError(line)
