"""`atoll recipes`: the published systems that Atoll can run, what each does and whose numbers it uses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from atoll.spec.recipe import Recipe

app = typer.Typer(help="List and explain the recipes: published ways to train together.", rich_markup_mode=None)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.callback(invoke_without_command=True)
def listing(context: typer.Context, as_json: Json = False) -> None:
    """List and explain the recipes: published ways to train together."""
    if context.invoked_subcommand is not None:
        return
    from atoll.spec.load import load_recipe, recipe_names

    recipes = {name: load_recipe(name) for name in recipe_names()}
    if as_json:
        rows = [{"name": name, "about": each.about, "paper": each.paper} for name, each in recipes.items()]
        print(json.dumps({"schema": "atoll.recipes/1", "recipes": rows}))
        return
    wide = max(len(name) for name in recipes)
    for name, each in recipes.items():
        print(f"{name:<{wide}}  {each.about}\n{'':<{wide}}  {each.paper}")
    print("\nMore on one: atoll recipes show NAME. In a run file: [recipe] base = NAME")


@app.command("list")
def list_command(context: typer.Context, as_json: Json = False) -> None:
    """List the recipes."""
    context.invoked_subcommand = None
    listing(context, as_json)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Name of a recipe.")],
    as_json: Json = False,
    toml: Annotated[bool, typer.Option("--toml", help="Print the recipe file itself, to copy and change.")] = False,
) -> None:
    """Explain one recipe: what it does on every axis, and which of its constants are whose."""
    from atoll.spec.load import load_recipe, recipe_text

    if toml:
        print(recipe_text(name), end="")
        return
    recipe = load_recipe(name)
    if as_json:
        import msgspec

        print(json.dumps({"schema": "atoll.recipe/1", "name": name, "recipe": msgspec.to_builtins(recipe)}))
        return
    print("\n".join(explain(name, recipe)))


def explain(name: str, recipe: Recipe) -> list[str]:
    """Return a recipe as lines for people: its story, then one line for each axis."""
    lines = [f"{name}: {recipe.about}", f"paper       {recipe.paper}", f"reproduced  {recipe.reproduced}", ""]
    work = recipe.work
    lines += [f"between exchanges   {_say(work.inner)}", f"  batch             {work.batch} samples a step"]
    lines += [f"  schedule          {_say(work.schedule)}"]
    lines += [f"  clip              {work.clip or 'off'}"]
    for channel_name, channel in recipe.channel.items():
        lines += ["", f"channel {channel_name}"]
        axes = ("when", "what", "whom", "overlap", "late", "home")
        rows = [(axis, _say(getattr(channel, axis))) for axis in axes]
        rows[3:3] = [("combine", _say(channel.merge.combine)), ("outer", _say(channel.merge.outer))]
        lines += [f"  {axis:<18}{said}" for axis, said in rows]
    return lines


def _say(choice: Any) -> str:
    """Return a choice on an axis as text: its kind, its numbers, and what its own documentation says."""
    numbers = ", ".join(f"{field} = {_value(getattr(choice, field))}" for field in choice.__struct_fields__)
    doc = (choice.__doc__ or "").strip().splitlines()[0].rstrip(".")
    kind = choice.__struct_config__.tag
    return f"{kind} ({numbers}): {doc[:1].lower()}{doc[1:]}" if numbers else f"{kind}: {doc[:1].lower()}{doc[1:]}"


def _value(value: Any) -> str:
    if hasattr(value, "__struct_config__"):
        return str(value.__struct_config__.tag)
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)
