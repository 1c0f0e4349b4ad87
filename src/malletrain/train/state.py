"""Everything that makes up a job's training state, as a header and a list of tensors.

One form serves three purposes: it is broadcast to joiners in place, written to checkpoints, and
kept aside while a joiner warms up. Random generators are no part of it: they are seeded from the
position at every step.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from malletrain.errors import TrainError
from malletrain.train.data import Position
from malletrain.train.group import Group

#: Tensors of at least this size travel by themselves and land in place; smaller ones together.
_LARGE_BYTES = 256 * 1024


class Stateful(Protocol):
    """What schedulers and the user's own objects have in common."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the state that later steps do not change."""

    header: bytes
    #: In the order of the header's names.
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Stands in the header for a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_on_device: bool

    def allocate(self, device: torch.device) -> Tensor:
        return torch.empty(
            self.shape, dtype=self.dtype, device=device if self.is_on_device else "cpu"
        )


def names_of(header: bytes) -> list[str]:
    """Return the names of a described state's tensors, in their order."""
    return [place.name for place in _places(pickle.loads(header)["tree"])]  # noqa: S301 - see TrainingState.receive


class TrainingState:
    """The live state of model, optimizer, scheduler and the user's objects."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: Stateful | None,
        objects: Mapping[str, Stateful],
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._others: dict[str, Stateful] = dict(objects)
        if scheduler is not None:
            self._others["scheduler"] = scheduler
        self.device = next(model.parameters()).device
        self.position = Position()
        #: The generation whose group gave or confirmed it; -1: there is none worth keeping.
        self.generation = -1
        #: Tensors of warm-up steps, to receive state in: fresh memory would be slow at first use.
        self._spare: dict[str, Tensor] = {}

    # -- as header and tensors --------------------------------------------------------------------

    def describe(self) -> tuple[bytes, list[Tensor]]:
        """Return the header, and the live tensors in its order."""
        tensors: list[Tensor] = []
        others = {name: thing.state_dict() for name, thing in self._others.items()}
        header = {
            "tree": _take_out({**self._tensor_tree(), "others": others}, "", tensors),
            "groups": [_without_parameters(group) for group in self._optimizer.param_groups],
            "position": asdict(self.position),
        }
        return pickle.dumps(header), tensors

    def receive(self, header: bytes) -> tuple[list[Tensor], dict[str, Any]]:
        """Make room for a described state: the tensors to fill, and what `complete` needs."""
        described = pickle.loads(header)  # noqa: S301 - from a member of our own job, or its checkpoint
        places = list(_places(described["tree"]))
        self._check_model(places)
        own = self._spare | _named(self._tensor_tree())
        return [self._room(place, own.get(place.name)) for place in places], described

    def _room(self, place: Place, present: Tensor | None) -> Tensor:
        if present is not None and (present.shape, present.dtype) == (place.shape, place.dtype):
            return present
        return place.allocate(self.device)

    def complete(self, tensors: list[Tensor], described: dict[str, Any]) -> None:
        """Take over the received tensors and everything else of the header."""
        tree = _put_back(described["tree"], iter(tensors))
        self._load_optimizer(tree["optimizer"], described["groups"])
        for name, thing in self._others.items():
            if name in tree["others"]:
                thing.load_state_dict(tree["others"][name])
        self.position = Position(**described["position"])

    # -- kept and restored ------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Copy the state."""
        header, tensors = self.describe()
        return Snapshot(header, tuple(tensor.detach().clone() for tensor in tensors))

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a copy; the memory of the present state is kept for the next to come."""
        self._spare = _named({"optimizer": self._optimizer_state()})
        rooms, described = self.receive(snapshot.header)
        with torch.no_grad():
            for room, kept in zip(rooms, snapshot.tensors, strict=True):
                room.copy_(kept)
        self.complete(rooms, described)

    # -- exchanged --------------------------------------------------------------------------------

    def share(self, group: Group, source: int) -> None:
        """Give every member of the group the state of `source`.

        Raises:
            GroupLostError: a member was lost. Where this was a receiver, its state is void.
        """
        if group.rank == source:
            header, tensors = self.describe()
            self._send(group, source, header, tensors)
            return
        self.generation = -1
        tensors, described = self.receive(_receive_bytes(group, source))
        _exchange(group, source, tensors)
        self.complete(tensors, described)
        self._spare = {}

    @staticmethod
    def _send(group: Group, source: int, header: bytes, tensors: list[Tensor]) -> None:
        data = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        group.wait([group.broadcast(torch.tensor([len(header)]), source)])
        group.wait([group.broadcast(data, source)])
        _exchange(group, source, tensors)

    # -- the parts --------------------------------------------------------------------------------

    def _tensor_tree(self) -> dict[str, Any]:
        return {"model": dict(self._model_tensors()), "optimizer": self._optimizer_state()}

    def _model_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._model.named_parameters():
            yield name, parameter.detach()
        yield from self._model.named_buffers()

    def _optimizer_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for number, parameter in enumerate(self._optimizer_parameters()):
            if entry := self._optimizer.state.get(parameter):
                state[str(number)] = {key: entry[key] for key in sorted(entry)}
        return state

    def _optimizer_parameters(self) -> list[Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def _load_optimizer(self, state: Mapping[str, Any], groups: list[dict[str, Any]]) -> None:
        # Not load_state_dict, which copies every tensor.
        self._optimizer.state.clear()
        for number, parameter in enumerate(self._optimizer_parameters()):
            if entry := state.get(str(number)):
                self._optimizer.state[parameter] = dict(entry)
        for own, given in zip(self._optimizer.param_groups, groups, strict=True):
            own.update(given)

    def _check_model(self, places: list[Place]) -> None:
        own = {f"model.{name}": tuple(tensor.shape) for name, tensor in self._model_tensors()}
        given = {place.name: place.shape for place in places if place.name.startswith("model.")}
        if own != given:
            name = min(k for k in own.keys() | given.keys() if own.get(k) != given.get(k))
            raise TrainError(
                f"this worker's model is not the job's: {name} is {own.get(name)} here and "
                f"{given.get(name)} there; make the script build the same model every time"
            )


def _without_parameters(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _take_out(tree: Any, name: str, tensors: list[Tensor]) -> Any:
    """Return the tree with a `Place` for each tensor, and the tensors in the list."""
    if isinstance(tree, Tensor):
        tensor = tree.detach()
        tensors.append(tensor)
        is_on_device = tensor.device.type != "cpu"
        return Place(name, tuple(tensor.shape), tensor.dtype, is_on_device)
    path = f"{name}." if name else ""
    if type(tree) is dict:
        return {key: _take_out(value, f"{path}{key}", tensors) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)([_take_out(v, f"{path}{i}", tensors) for i, v in enumerate(tree)])
    return tree


def _places(tree: Any) -> Iterator[Place]:
    if isinstance(tree, Place):
        yield tree
    elif type(tree) is dict:
        for value in tree.values():
            yield from _places(value)
    elif type(tree) in (list, tuple):
        for value in tree:
            yield from _places(value)


def _put_back(tree: Any, tensors: Iterator[Tensor]) -> Any:
    """Undo `_take_out`."""
    if isinstance(tree, Place):
        return next(tensors)
    if type(tree) is dict:
        return {key: _put_back(value, tensors) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)([_put_back(value, tensors) for value in tree])
    return tree


def _named(tree: Any) -> dict[str, Tensor]:
    tensors: list[Tensor] = []
    places = _places(_take_out(tree, "", tensors))
    return {place.name: tensor for place, tensor in zip(places, tensors, strict=True)}


def _receive_bytes(group: Group, source: int) -> bytes:
    size = torch.zeros(1, dtype=torch.int64)
    group.wait([group.broadcast(size, source)])
    data = torch.empty(int(size), dtype=torch.uint8)
    group.wait([group.broadcast(data, source)])
    return data.numpy().tobytes()


def _exchange(group: Group, source: int, tensors: list[Tensor]) -> None:
    """Broadcast the tensors: the large ones by themselves, in place, the small ones by type."""
    bundles: list[tuple[Tensor, list[Tensor]]] = []
    kinds: dict[tuple[torch.dtype, str], list[Tensor]] = {}
    with torch.no_grad():
        for tensor in tensors:
            if tensor.nbytes >= _LARGE_BYTES:
                bundles.append((tensor.contiguous(), [tensor]))
            else:
                kinds.setdefault((tensor.dtype, tensor.device.type), []).append(tensor)
        bundles += [(torch.cat([t.reshape(-1) for t in ts]), ts) for ts in kinds.values()]
        group.wait([group.broadcast(flat, source) for flat, _ in bundles])
        if group.rank == source:
            return
        for flat, parts in bundles:
            if flat.data_ptr() == parts[0].data_ptr():
                continue
            pieces = flat.reshape(-1).split([part.numel() for part in parts])
            for part, piece in zip(parts, pieces, strict=True):
                part.copy_(piece.view(part.shape))
