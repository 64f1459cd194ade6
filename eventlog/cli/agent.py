"""`validate` and `info`: what is in an agent's folder, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from eventlog import ManifestError, validate_manifest
from eventlog.agents import turn_of
from eventlog.cli.explain import Code, Stop
from eventlog.cli.human import count
from eventlog.cli.options import agent_and_log_options, agent_option, json_option, log_of
from eventlog.cli.output import Output, Span, note, out
from eventlog.cli.plain import plain
from eventlog.cli.table import Column, Row, table
from eventlog.durable import Manifest, load_manifest
from eventlog.errors import Finding, InvalidName
from eventlog.observe import Discovered, LoadedExperiment, LoadedHook, discover

HOOKS = (
    Column("HOOK"),
    Column("EXTENSION", spare=2),
    Column("RESTART", spare=1),
    Column("EVENTS", long=True),
    Column("SOURCE", long=True, path=True),
)
EXTENSIONS = (
    Column("EXTENSION"),
    Column("ID"),
    Column("VERSION", spare=1),
    Column("DELIVERED", long=True, least=27),
    Column("ASKS FOR", long=True, least=24),
)
EXPERIMENTS = (
    Column("EXPERIMENT"),
    Column("ARMS", long=True),
    Column("SOURCE", long=True, path=True),
)
MANIFEST = "extension.json"


@dataclass(frozen=True, slots=True)
class Placed:
    """A finding with the extension whose manifest it is about, if it is about one."""

    finding: Finding
    extension: str | None = None

    def document(self) -> dict[str, Any]:
        """As JSON; `path` is a pointer into the manifest of `extension`, where that is there, else a file."""
        extension = {} if self.extension is None else {"extension": self.extension}
        return {**plain(self.finding), **extension}


@click.command(short_help="what is wrong with an agent's hooks and extensions")
@json_option
@agent_option
def validate(agent_dir: Path, as_json: bool) -> Code:
    """Load the hooks of an agent's folder, check the manifests of its extensions, and report everything at once.

    Ends with 1 when there are errors; warnings alone are no reason to.
    """
    found = _discovered(agent_dir)
    findings = _findings(found, agent_dir)
    errors = sum(each.finding.severity == "error" for each in findings)
    output = out()
    if as_json:
        output.json(
            {"errors": errors, "warnings": len(findings) - errors, "findings": [each.document() for each in findings]}
        )
    else:
        for each in findings:
            _tell(output, each)
        _conclude(output, found, agent_dir, errors, len(findings) - errors)
    return Code.FINDINGS if errors else Code.DONE


@click.command(short_help="an agent's hooks and extensions")
@json_option
@agent_and_log_options
def info(agent_dir: Path, db: Path | None, as_json: bool) -> Code:
    """Show the agent in a folder: its hooks in the order in which they are called, its extensions and experiments, and
    where its log is."""
    found = _discovered(agent_dir)
    log, manifests = log_of(agent_dir, db), list(_manifests(agent_dir))
    if not (agent_dir / "agent").is_dir():
        raise Stop(Code.NOT_FOUND, _no_agent(agent_dir, log))
    faults = _findings(found, agent_dir)
    if as_json:
        hooks = [_hook_document(hook, agent_dir) for hook in found.hooks]
        extensions = [_extension_document(folder, manifest) for folder, manifest in manifests]
        experiments = [_experiment_document(experiment, agent_dir) for experiment in found.experiments]
        where = {"dir": str(agent_dir.resolve()), "log": str(log), "logExists": log.exists()}
        parts = {"hooks": hooks, "extensions": extensions, "experiments": experiments}
        out().json({"agents": [{"name": found.agent, **where, **parts}]})
    else:
        out().line("agent ", Span(found.agent, "title"), f" in {agent_dir.resolve()}")
        out().line(f"log {log}", Span("" if log.exists() else " (not there yet)", "dim"))
        _draw(out(), found, manifests, agent_dir)
    if faults:
        out().flush()
        note(f"{count(len(faults), 'finding')}; `eventlog validate` tells them")
    return Code.DONE


def _no_agent(agent_dir: Path, log: Path) -> str:
    """What to do instead: whoever has a log and no agent here means the log."""
    place = f"there is no folder {agent_dir / 'agent'}"
    told = f"{place}; name the one that holds it with --dir, or make one with `eventlog init`"
    return f"{told}; `eventlog stats --db {log}` tells of the log alone" if log.exists() else told


# ------------------------------------------------------------------------------------------------------- what is there


def _discovered(agent_dir: Path) -> Discovered:
    if not agent_dir.is_dir():
        raise Stop(Code.NOT_FOUND, f"there is no folder {agent_dir}; name the one that holds agent/ with --dir")
    return discover(agent_dir)


def _extension_folders(agent_dir: Path) -> Iterator[Path]:
    """Folders that are extensions, or should be: one that only has hooks belongs to an extension from elsewhere."""
    root = agent_dir / "agent" / "extensions"
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        hooks_only = (folder / "hooks").is_dir() and not (folder / MANIFEST).exists()
        if folder.is_dir() and not folder.name.startswith((".", "_")) and not hooks_only:
            yield folder


def _findings(found: Discovered, agent_dir: Path) -> list[Placed]:
    return [*map(Placed, [*found.findings, *_turn_findings(found)]), *_manifest_findings(agent_dir)]


def _turn_findings(found: Discovered) -> Iterator[Finding]:
    try:
        turn_of(found.agent_module)
    except InvalidName as error:
        yield Finding("error", "agent-turn-invalid", str(error), "agent/agent.py")


def _manifest_findings(agent_dir: Path) -> list[Placed]:
    folders = _extension_folders(agent_dir)
    return [Placed(finding, folder.name) for folder in folders for finding in validate_manifest(folder)]


def _manifests(agent_dir: Path) -> Iterator[tuple[Path, Manifest | None]]:
    for folder in _extension_folders(agent_dir):
        try:
            yield folder, load_manifest(folder)
        except ManifestError:
            yield folder, None


# ----------------------------------------------------------------------------------------------------------- as people


def _tell(output: Output, placed: Placed) -> None:
    found = placed.finding
    where = found.path if placed.extension is None else f"agent/extensions/{placed.extension}/{MANIFEST} {found.path}"
    output.line(
        Span(found.severity, "bad" if found.severity == "error" else "wait"),
        f" {found.code} ",
        Span(where.rstrip(), "name"),
        f": {found.message}",
    )


def _conclude(output: Output, found: Discovered, agent_dir: Path, errors: int, warnings: int) -> None:
    extensions = len(list(_extension_folders(agent_dir)))
    told = f"{count(len(found.hooks), 'hook')} and {count(extensions, 'extension')}"
    if errors or warnings:
        output.line(f"{count(errors, 'error')}, {count(warnings, 'warning')} in {told}")
    else:
        output.line(Span("valid", "good"), f": {told}")


def _draw(output: Output, found: Discovered, manifests: list[tuple[Path, Manifest | None]], agent_dir: Path) -> None:
    for title, columns, rows in (
        ("no hooks", HOOKS, [_hook_row(hook, agent_dir) for hook in found.hooks]),
        ("no extensions", EXTENSIONS, [_extension_row(folder, manifest) for folder, manifest in manifests]),
    ):
        output.line()
        table(output, columns, rows)
        if not rows:
            output.line(Span(title, "dim"))
    if found.experiments:
        output.line()
        table(output, EXPERIMENTS, [_experiment_row(experiment, agent_dir) for experiment in found.experiments])


def _hook_row(hook: LoadedHook, agent_dir: Path) -> Row:
    return (
        Span(hook.name, "name"),
        hook.extension or "",
        hook.definition.on_restart,
        " ".join(hook.definition.events),
        _source(hook, agent_dir),
    )


def _experiment_row(experiment: LoadedExperiment, agent_dir: Path) -> Row:
    arms = " ".join(f"{arm}={weight:g}" for arm, weight in experiment.definition.arms.items())
    return Span(experiment.definition.name, "name"), arms, _source(experiment, agent_dir)


def _extension_row(folder: Path, manifest: Manifest | None) -> Row:
    if manifest is None:
        return Span(folder.name, "name"), Span("invalid manifest", "bad"), "", "", ""
    delivered = ", ".join(str(hook.event) for hook in manifest.hooks)
    asked = ", ".join(str(permission.capability) for permission in manifest.permissions)
    return Span(folder.name, "name"), manifest.id, manifest.version, delivered, asked


# ------------------------------------------------------------------------------------------------------------- as JSON


def _hook_document(hook: LoadedHook, agent_dir: Path) -> dict[str, Any]:
    extension = {} if hook.extension is None else {"extension": hook.extension}
    return {
        "name": hook.name,
        "events": list(hook.definition.events),
        "onRestart": hook.definition.on_restart,
        "source": _source(hook, agent_dir),
        **extension,
    }


def _experiment_document(experiment: LoadedExperiment, agent_dir: Path) -> dict[str, Any]:
    definition = experiment.definition
    return {"name": definition.name, "arms": dict(definition.arms), "source": _source(experiment, agent_dir)}


def _extension_document(folder: Path, manifest: Manifest | None) -> dict[str, Any]:
    if manifest is None:
        return {"name": folder.name, "valid": False}
    return {"name": folder.name, "valid": True, "id": manifest.id, **_declared(manifest)}


def _declared(manifest: Manifest) -> dict[str, Any]:
    declared = plain(manifest)
    return {name: declared[name] for name in ("version", "displayName", "hooks", "operations", "permissions")}


def _source(loaded: LoadedHook | LoadedExperiment, agent_dir: Path) -> str:
    root = agent_dir.resolve()
    return loaded.source.relative_to(root).as_posix() if loaded.source.is_relative_to(root) else str(loaded.source)
