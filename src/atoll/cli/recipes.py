"""`atoll recipes`: the published systems that Atoll can run, what each does and whose numbers it uses.

atoll recipes                                  all of them, a line each
atoll recipes NAME                             one of them, axis by axis
atoll recipes [NAME] --model 125m --fleet homes    and what each moves: bytes a step, and the least time of an exchange
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from atoll.cli.options import Json
from atoll.errors import SpecError
from atoll.units import say_bytes, say_count, say_counted, say_table, say_time

if TYPE_CHECKING:
    from atoll.plan.lines import Line
    from atoll.plan.traffic import Traffic
    from atoll.spec.axes.control import Form
    from atoll.spec.recipe import Recipe
    from atoll.spec.shelf import Head

VOCABULARY = 1024
"""Of a named size, unless its parameters are counted out: that of the embedded corpus's tokenizer."""
PEERS = 8
PARAMETERS_MAX, PEERS_MAX = 10**15, 10**6
"""More than anybody trains: what is asked beyond is a slip."""


class _NamesToo(TyperGroup):
    """A word that is no command is the name of a recipe to show."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = args and self.get_command(ctx, args[0]) is not None
        return super().resolve_command(ctx, args if known or not args else ["show", *args])


app = typer.Typer(
    help="List and explain the recipes: published ways to train together.", rich_markup_mode=None, cls=_NamesToo
)

Model = Annotated[str, typer.Option("--model", metavar="SIZE", help="Say what a model of this size moves.")]
Parameters = Annotated[
    int, typer.Option("--parameters", min=0, max=PARAMETERS_MAX, help="Or one of so many parameters.")
]
FleetName = Annotated[str, typer.Option("--fleet", help="On the machines of a fleet: a file, or a shipped one's name.")]
Peers = Annotated[
    int,
    typer.Option(
        "--peers",
        min=0,
        max=PEERS_MAX,
        help=f"Among so many equal peers, {PEERS} unless said; with --fleet: its first so many machines.",
    ),
]


@app.callback(invoke_without_command=True)
def listing(
    context: typer.Context,
    model: Model = "",
    parameters: Parameters = 0,
    fleet: FleetName = "",
    peers: Peers = 0,
    as_json: Json = False,
) -> None:
    """List and explain the recipes: published ways to train together."""
    if context.invoked_subcommand is not None:
        if model or parameters or fleet or peers or as_json:
            raise SpecError("options go behind the name", hint="atoll recipes NAME --model 125m --fleet homes")
        return
    from atoll.spec.shelf import recipe_heads

    heads = recipe_heads()
    asked = _asked(model, parameters, fleet, peers)
    moved = _all_moves(asked, list(heads)) if asked else {}
    if as_json:
        rows = [
            {"name": name, **each._asdict()} | (_moves_data(moved[name]) if asked else {})
            for name, each in heads.items()
        ]
        print(json.dumps({"schema": "atoll.recipes/1", "recipes": rows}))
        return
    print("\n".join(_table(asked, moved) if asked else _list(heads)))


@app.command("list")
def list_command(context: typer.Context, as_json: Json = False) -> None:
    """List the recipes."""
    context.invoked_subcommand = None
    listing(context, as_json=as_json)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Name of a recipe.")],
    model: Model = "",
    parameters: Parameters = 0,
    fleet: FleetName = "",
    peers: Peers = 0,
    as_json: Json = False,
    toml: Annotated[bool, typer.Option("--toml", help="Print the recipe file itself, to copy and change.")] = False,
) -> None:
    """Explain one recipe: what it does on every axis, and which of its constants are whose."""
    from atoll.spec.load import load_recipe, recipe_text

    if toml:
        print(recipe_text(name), end="")
        return
    recipe = load_recipe(name)
    asked = _asked(model, parameters, fleet, peers)
    if as_json:
        import msgspec

        told = {"schema": "atoll.recipe/1", "name": name, "recipe": msgspec.to_builtins(recipe)}
        print(json.dumps(told | ({"moves": asdict(asked.moves(recipe))} if asked else {})))
        return
    print("\n".join(explain(name, recipe)))
    if asked:
        print("\n" + "\n".join(_moves_lines(asked, asked.moves(recipe))))


def explain(name: str, recipe: Recipe) -> list[str]:
    """Return a recipe as lines for people: its story, then one line for each axis."""
    work = recipe.work
    passes = f", {work.at_once} at once" if work.at_once < work.batch else ""
    head = [("paper", recipe.paper), ("reproduced", recipe.reproduced), ("reconstructed", recipe.reconstructed)]
    lines = [f"{name}: {recipe.about}", *(f"{label:<15}{text}" for label, text in head if text), ""]
    lines += [
        f"between exchanges   {_said(work.inner)}",
        f"  quota             {_said(work.quota)}",
        f"  batch             {work.batch} samples a step{passes}",
        f"  schedule          {_said(work.schedule)}",
        f"  clip              {work.clip or 'off'}",
    ]
    for channel_name, channel in recipe.channel.items():
        merge = channel.merge
        axes: dict[str, Any] = {
            "when": channel.when,
            "what": channel.what,
            "whom": channel.whom,
            "combine": merge.combine,
            "outer": merge.outer,
            "overlap": channel.overlap,
            "barrier": channel.barrier,
            "late": channel.late,
            "home": channel.home,
        }
        lines += ["", f"channel {channel_name}", *(f"  {axis:<18}{_said(choice)}" for axis, choice in axes.items())]
    return lines + _control_lines(recipe)


def _control_lines(recipe: Recipe) -> list[str]:
    """Return who turns which knobs, where somebody does: a line for each rung of the ladder."""
    from atoll.spec.axes.control import Auto, Hide, Match, Nobody
    from atoll.spec.knobs import batches_of

    match recipe.control:
        case Nobody():
            return []
        case Auto() as auto:
            limit = f"from {auto.least} steps on, so that exchanges take at most {100 * auto.share:g} % of the time"
            rates = ", ".join(f"{lr} from {count} on" for count, lr in auto.outer_lr)
            more = [f"  {'outer lr':<18}by number of members: {rates}"] if rates else []
        case Hide() as hide:
            late = f"results up to {hide.late_max} rounds late"
            limit = f"after {hide.every} rounds, so that exchanges hide behind work: {late}"
            sizes = [str(samples) for samples in batches_of(recipe) if samples]
            more = [f"  {'batches':<18}of all together: {', '.join(sizes)} samples"] if sizes else []
        case Match() as match_:
            limit = f"after {match_.every} rounds, so that all exchanges take as long: each peer on a rung of its own"
            more = []
    rungs = [f"  rung {number:<13}{_form(form)}" for number, form in enumerate(recipe.control.ladder)]
    return ["", f"knobs are turned while it runs, {limit}", *rungs, *more]


def _form(form: Form) -> str:
    """Return a form of the exchange as text, and how rare and how late it may be."""
    from atoll.spec.axes.control import Rung
    from atoll.spec.axes.pace import Delay
    from atoll.spec.say import say

    said = f"{say(form.codec)} by {say(form.route)}"
    if not isinstance(form, Rung):
        return said
    late = f", results up to {form.overlap.steps} steps late" if isinstance(form.overlap, Delay) else ""
    return f"{said}, up to {form.steps} steps{late}"


def _said(choice: Any) -> str:
    """Return a choice on an axis as text, with what its own documentation says."""
    from atoll.spec.say import say

    doc = (choice.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return f"{say(choice)}: {doc[:1].lower()}{doc[1:]}"


MARK = " *"
LEGEND = "* parts are reconstructed or unverified: the paper's own were not at hand. `atoll recipes NAME` says which."


def _list(heads: Mapping[str, Head]) -> list[str]:
    """Return all recipes, two lines each, those with reconstructed parts marked, and what the mark means."""
    marked = {name: name + (MARK if each.reconstructed else "") for name, each in heads.items()}
    wide = max(map(len, marked.values()))
    lines = [f"{marked[name]:<{wide}}  {each.about}\n{'':<{wide}}  {each.paper}" for name, each in heads.items()]
    more = "More on one: atoll recipes NAME. What they move: atoll recipes --model 125m --fleet homes"
    return [*lines, f"\n{LEGEND}", f"{more}. In a run file: [recipe] base = NAME"]


# what a recipe moves


@dataclass(frozen=True)
class _Moves:
    """What a round of one recipe moves: bytes of the peer that moves most."""

    parameters: int
    peers: int
    steps_per_round: float
    exact: bool
    round_sent_bytes: int
    round_received_bytes: int
    step_bytes: float
    times_less_than_ddp_fp32: float | None
    exchange_s_min: float | None
    slowest_line: str | None
    between_regions_step_bytes: float | None

    def steps(self) -> str:
        """Return how many steps a round stands for."""
        steps = self.steps_per_round
        return f"{steps:.3g}" if steps < 100 else f"{steps:,.0f}"

    def times(self) -> str:
        """Return how many times less is moved than by DDP."""
        times = self.times_less_than_ddp_fp32
        return "-" if times is None else f"{times:,.1f}" if times < 100 else f"{times:,.0f}"

    def least(self) -> str:
        """Return how long an exchange takes at least."""
        return say_time(self.exchange_s_min) if self.exchange_s_min else "-"


@dataclass(frozen=True)
class _Asked:
    """A model and who exchanges it."""

    parameters: int
    lines: list[Line]
    """Of a crowd, those that stand for it."""
    peers: int
    where: str
    shapes: dict[str, tuple[int, ...]] | None = None
    """Its tensors, where they are known."""

    def moves(self, recipe: Recipe) -> _Moves:
        from atoll.plan.traffic import traffic

        found = traffic(recipe, self.parameters, self.lines, shapes=self.shapes)
        return _Moves(
            parameters=self.parameters,
            peers=self.peers,
            steps_per_round=found.steps,
            exact=found.exact,
            round_sent_bytes=found.worst.sent_bytes,
            round_received_bytes=found.worst.received_bytes,
            step_bytes=found.step_bytes,
            times_less_than_ddp_fp32=self.ddp_bytes / found.step_bytes if found.step_bytes else None,
            exchange_s_min=found.slowest.least_s or None,
            slowest_line=_slowest(found),
            between_regions_step_bytes=found.between_bytes / found.steps if self.far else None,
        )

    @cached_property
    def ddp_bytes(self) -> float:
        """Return what DDP moves here per step: by formula among equals, else with shares by lines as others have."""
        from atoll.observe.comparison import is_ddp
        from atoll.plan.traffic import every_step_fp32, traffic
        from atoll.spec.load import load_recipe, recipe_names

        if not any(line.up_bytes_s for line in self.lines):
            return every_step_fp32(self.parameters, self.peers)
        plain = next(recipe for recipe in map(load_recipe, recipe_names()) if is_ddp(recipe))
        return traffic(plain, self.parameters, self.lines, shapes=self.shapes).step_bytes

    @property
    def far(self) -> bool:
        """Return whether there are regions to send something between."""
        return len({line.region for line in self.lines}) > 1


def _all_moves(asked: _Asked, names: Sequence[str]) -> dict[str, _Moves | SpecError]:
    """Return what each of some recipes moves; of one that such a model cannot be trained with, why."""
    from atoll.spec.load import load_recipe

    found: dict[str, _Moves | SpecError] = {}
    for name in names:
        try:
            found[name] = asked.moves(load_recipe(name))
        except SpecError as error:
            found[name] = error
    return found


def _moves_data(moves: _Moves | SpecError) -> dict[str, Any]:
    """Return what a recipe moves, or why that cannot be counted, for programs."""
    return {"moves": asdict(moves)} if isinstance(moves, _Moves) else {"moves": None, "why": _why(moves)}


def _why(error: SpecError) -> str:
    return str(error).removeprefix("recipe: ")


def _slowest(found: Traffic) -> str | None:
    line = found.slowest.line
    if not found.slowest.least_s:
        return None
    return f"{line.name} ({line.up_bytes_s * 8 / 1e6:g} Mbit up, {line.down_bytes_s * 8 / 1e6:g} down)"


def _asked(model: str, parameters: int, fleet: str, peers: int) -> _Asked | None:
    """Return what the options ask about; None: they do not."""
    if not (model or parameters or fleet or peers):
        return None
    if not (model or parameters):
        raise SpecError("bytes depend on the model", hint="add --model 125m, or --parameters 1000000000")
    if model and parameters:
        raise SpecError("--model and --parameters are both given", hint="give one of them")
    from atoll.model.shape import elements

    tensors = None if parameters else _shapes(model)
    size = parameters if tensors is None else elements(tensors)
    lines, count, where = _equal(peers or PEERS) if not fleet else _on_fleet(fleet, peers)
    stand = f", {len(lines)} of which stand for all" if len(lines) < count else ""
    return _Asked(size, lines, count, where + stand, tensors)


def _equal(peers: int) -> tuple[list[Line], int, str]:
    """Return the lines of peers that are all alike, how many they stand for, and what to call them."""
    from atoll.plan.lines import MEMBERS_MAX, Line

    few = min(peers, MEMBERS_MAX)
    return [Line(count=peers / few)] * few, peers, say_counted(peers, "equal peer")


def _on_fleet(name: str, peers: int) -> tuple[list[Line], int, str]:
    """Return likewise the lines of a fleet's machines, or of the first of them."""
    from atoll.plan.lines import lines_of, standing_in
    from atoll.spec.fleet import first, load_fleet

    described = load_fleet(name)
    machines = first(described, peers)
    some = [machines[place] for place in standing_in(machines)]
    where = f"fleet {described.name} ({say_counted(len(machines), 'machine')})"
    return lines_of(some, len(machines) / len(some)), len(machines), where


def _shapes(model: str) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a named size with the default vocabulary."""
    from atoll.model.shape import shapes, size_of
    from atoll.spec.run import Fresh

    return shapes(size_of(Fresh(size=model)), VOCABULARY)


BOUND = (
    "Bytes are payload by exact lengths; heads of messages add less than 2 % from a few million parameters on.\n"
    "The exchange is a bound: the slowest line full all the while, no latency, nobody waiting.\n"
    "Of several channels it is their mean round; of knobs that are turned while a run goes on, what it begins with."
)


def _table(asked: _Asked, found: Mapping[str, _Moves | SpecError]) -> list[str]:
    """Return what all recipes move, a line each."""
    rows: list[tuple[str, ...]] = [
        ("recipe", "steps", "sent a round", "received", "both, a step", "exchange takes", "less than DDP")
    ]
    rows += [_row(name, each) for name, each in found.items()]
    moved = {name: each for name, each in found.items() if isinstance(each, _Moves)}
    head = f"{say_count(asked.parameters)} parameters, {asked.where}; of each recipe the peer that moves most"
    ddp = "fp32 DDP moves its gradients around at every step: the last column is how many times less is moved per step."
    bounds = [name for name, each in moved.items() if not each.exact]
    most = [f"Of {', '.join(bounds)} it is the most that can be: what is sent depends on values."] if bounds else []
    not_counted = [f"Not counted: {name}: {_why(why)}." for name, why in found.items() if isinstance(why, SpecError)]
    return [head, "", *say_table(rows), "", BOUND, *most, ddp, *_slowest_lines(moved), *not_counted]


def _row(name: str, each: _Moves | SpecError) -> tuple[str, ...]:
    if isinstance(each, SpecError):
        return (name, *"------")
    sent, received = say_bytes(each.round_sent_bytes), say_bytes(each.round_received_bytes)
    return name, each.steps(), sent, received, say_bytes(each.step_bytes), each.least(), each.times()


def _slowest_lines(moved: Mapping[str, _Moves]) -> list[str]:
    """Return the line that most recipes wait for, then others with whose they are."""
    by_line: dict[str, list[str]] = {}
    for name, each in moved.items():
        if each.slowest_line:
            by_line.setdefault(each.slowest_line, []).append(name)
    first, *others = sorted(by_line, key=lambda line: -len(by_line[line])) or [""]
    if not first:
        return []
    return [f"The slowest line: {first}.", *(f"Of {', '.join(by_line[line])}: {line}." for line in others)]


def _moves_lines(asked: _Asked, moves: _Moves) -> list[str]:
    """Return what one recipe moves, as lines."""
    steps = "step" if moves.steps_per_round == 1 else "steps"
    rows = [
        ("a round", f"{say_bytes(moves.round_sent_bytes)} sent, {say_bytes(moves.round_received_bytes)} received"),
        ("a step", f"{say_bytes(moves.step_bytes)} both ways ({moves.steps()} {steps} a round)"),
        ("against DDP", f"{moves.times()} times less per step than gradients in fp32"),
    ]
    if moves.between_regions_step_bytes is not None:
        rows.append(("between regions", f"{say_bytes(moves.between_regions_step_bytes)} a step, by all together"))
    if moves.slowest_line:
        rows.append(("an exchange", f"at least {moves.least()}, by the line of {moves.slowest_line}"))
    head = f"moves, with {say_count(asked.parameters)} parameters on {asked.where}, by the peer that moves most"
    most = [] if moves.exact else ["It is the most that can be: what is sent depends on values."]
    return [head, *(f"  {name:<18}{said}" for name, said in rows), "", BOUND, *most]
