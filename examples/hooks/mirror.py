"""Mirrors the transcript: put this file in `agent/hooks/`, and each event becomes a file of its session.

The mirror holds reasoning and the arguments and outputs of tools, so choose its place accordingly.
"""

from __future__ import annotations

from eventlog import Event, HookContext, define_hook


async def mirror(event: Event[object], ctx: HookContext) -> None:
    """Write one event; the deltas are left out, because `*.completed` has the whole of their text."""
    if event.type.endswith(".appended"):
        return
    await ctx.host.files.write(f"transcript/{event.index:06}.json", event.to_json())


hook = define_hook(events={"*": mirror})
