"""`trace verify`: check a dataset, or a copy of its files, against its certificates."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trace_etl.cli.client import Answer, StackClient, fail, quote_segment, session
from trace_etl.cli.data.proof.rebuilds import compare_with_rebuild
from trace_etl.cli.data.proof.samples import compare_with_chain
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption, WideOption, parse_range
from trace_etl.cli.output import Columns, format_count, format_size, print_answer, print_items
from trace_etl.cli.progress import show_counts

if TYPE_CHECKING:
    from trace_etl.api.proof.certificates import Certificate, StoredCertificate
    from trace_etl.api.proof.manifest import Manifest
    from trace_etl.model.scope import Range
    from trace_etl.objects.store import ObjectStore
    from trace_etl.proof.checks import Checked, FileSource

_EXIT_USAGE = 2
_EXIT_PROBLEMS = 1
_PROBLEMS: Columns = {
    "partition": lambda item: item["partition_key"],
    "check": lambda item: item["check"],
    "problem": lambda item: item["problem"],
}


_Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name of the dataset.")]
_Range = Annotated[
    str | None,
    typer.Option("--range", metavar="START-END", help="Only these blocks; all must exist."),
]
_Against = Annotated[
    str | None, typer.Option(metavar="URL", help="Read a sample again from this RPC endpoint.")
]
_Sample = Annotated[int, typer.Option(min=1, help="Partitions to compare with --against.")]
_RebuildSample = Annotated[
    int, typer.Option(min=0, metavar="N", help="Build this many partitions again and compare.")
]
_RebuildTimeout = Annotated[
    float, typer.Option(min=1, help="Seconds to wait for the rebuilt partitions.")
]
_Manifest = Annotated[
    Path | None, typer.Option(help="Check files against this signed manifest, without a stack.")
]
_Files = Annotated[
    Path | None,
    typer.Option(help="Directory with a copy of the files. Default with --manifest: here."),
]
_Key = Annotated[
    Path | None,
    typer.Option(metavar="JWKS", help="Trusted keys of manifests. Default: ask the stack."),
]


def verify(
    name: _Name = None,
    blocks: _Range = None,
    against: _Against = None,
    sample: _Sample = 3,
    rebuild_sample: _RebuildSample = 0,
    rebuild_timeout: _RebuildTimeout = 600.0,
    manifest: _Manifest = None,
    files: _Files = None,
    key: _Key = None,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check a dataset against its certificates.

    Checks coverage, links between partitions, every byte and every row. Exits with 1 if something
    does not match.
    """
    if (name is None) == (manifest is None):
        fail(["give the name of a dataset, or --manifest FILE"], _EXIT_USAGE)
    span = parse_range(blocks, exit_code=_EXIT_USAGE) if blocks else None
    if manifest is not None:
        if against or blocks or rebuild_sample:
            fail(
                ["--manifest checks files only; omit --range, --against and --rebuild-sample"],
                _EXIT_USAGE,
            )
        report = _verify_manifest(manifest, files or Path(), key, home)
    else:
        report = _verify_dataset(
            str(name),
            span,
            files,
            home,
            against,
            sample,
            (rebuild_sample, rebuild_timeout),
        )
    print_answer(report, as_json, _print_report)
    if not report["is_valid"]:
        raise typer.Exit(_EXIT_PROBLEMS)


def _verify_dataset(
    name: str,
    span: "Range | None",
    files: Path | None,
    home: Path,
    rpc_url: str | None,
    sample: int,
    rebuild: tuple[int, float],
) -> Answer:
    from trace_etl.proof.checks import (
        Checked,
        CopiedFiles,
        StoredFiles,
        check_coverage,
        check_links,
    )

    checked = Checked()
    with session(home) as client:
        version, certificates = _read_certificates(client, name, span)
        source = CopiedFiles(files) if files is not None else StoredFiles(_open_store(home))
        checked.problems += check_coverage(certificates, span) + check_links(certificates)
        _check_all_files(checked, certificates, source)
        if rpc_url is not None:
            chosen = _choose(certificates, sample)
            with show_counts() as report:
                for number, item in enumerate(chosen):
                    report("compared", number, len(chosen))
                    checked.problems += compare_with_chain(item, rpc_url)
        count, timeout = rebuild
        if count:
            checked.problems += compare_with_rebuild(
                client,
                name,
                _choose(certificates, count),
                lambda: _read_certificates(client, name, span)[1],
                timeout,
            )
    return _make_report(name, version, checked)


def _verify_manifest(path: Path, files: Path, key: Path | None, home: Path) -> Answer:
    from trace_etl.proof.checks import Checked, CopiedFiles, check_links

    manifest = _open_manifest(path, key, home)
    if not files.is_dir():
        fail(
            [f"--files: {files} is not a directory; name the directory with the copy"], _EXIT_USAGE
        )
    source, checked = CopiedFiles(files), Checked()
    checked.problems += check_links(manifest.partitions)
    checked.problems += source.list_additional(manifest.partitions)
    _check_all_files(checked, manifest.partitions, source)
    return _make_report(manifest.dataset, str(manifest.dataset_version), checked)


def _open_manifest(path: Path, key: Path | None, home: Path) -> "Manifest":
    from trace_etl.proof.manifests import BadManifest, open_manifest

    try:
        text = path.read_text()
        keys: Any = json.loads(key.read_text()) if key is not None else None
    except (OSError, ValueError) as error:
        fail(
            [f"cannot read the manifest or its keys: {error}; check --manifest and --key"],
            _EXIT_USAGE,
        )
    if keys is None:
        with session(home) as client:
            keys = client.get("/v1/certificate-keys")
    try:
        return open_manifest(text, keys)
    except BadManifest as error:
        fail([f"{path}: {error}"])


def _read_certificates(
    client: StackClient, name: str, span: "Range | None"
) -> tuple[str, "list[StoredCertificate]"]:
    from trace_etl.api.proof.certificates import StoredCertificate

    params = {"range": span.key} if span else {}
    answer = client.get_all(f"/v1/datasets/{quote_segment(name)}/certificates", **params)
    items = [StoredCertificate.model_validate(item) for item in answer["items"]]
    return answer["dataset_version"], items


def _open_store(home: Path) -> "ObjectStore":
    """Open the object store of a stack with the rights of the caller: their files or S3 credentials."""
    import os

    from trace_etl.lite import configuration, objects
    from trace_etl.lite.errors import StackError
    from trace_etl.lite.home import Home

    place = Home.at(home)
    try:
        saved = configuration.read(place.config)
        return objects.open_saved(place, saved.objects_url, os.environ)
    except StackError as error:
        fail([str(error)])


def _check_all_files(
    checked: "Checked", certificates: "Sequence[Certificate]", source: "FileSource"
) -> None:
    from trace_etl.proof.checks import check_files

    with show_counts() as report:
        for number, certificate in enumerate(certificates):
            report("partitions", number, len(certificates))
            checked.add(certificate, check_files(certificate, source))


def _choose(certificates: "Sequence[StoredCertificate]", count: int) -> "list[StoredCertificate]":
    return random.sample(list(certificates), min(count, len(certificates)))


def _make_report(name: str, version: str, checked: "Checked") -> Answer:
    return {
        "dataset": name,
        "dataset_version": version,
        "is_valid": not checked.problems,
        **asdict(checked),
    }


def _print_report(report: Answer) -> None:
    if report["problems"]:
        print_items(report["problems"], _PROBLEMS)
    checked = (
        f"{format_count(report['partitions'], 'partition')}, {format_count(report['files'], 'file')}, "
        f"{format_count(report['rows'], 'row')}, {format_size(report['bytes'])}"
    )
    if report["is_valid"]:
        typer.echo(f"{report['dataset']} is valid: {checked}.")
    else:
        found = format_count(len(report["problems"]), "problem")
        typer.echo(f"{report['dataset']}: {found} in {checked}.", err=True)
    if report["rejected"]:
        typer.echo(_describe_rejected(report["rejected"]))


def _describe_rejected(answers: Sequence[Answer]) -> str:
    counts = Counter(item["endpoint"] for item in answers)
    named = ", ".join(f"{endpoint} ({count})" for endpoint, count in counts.most_common())
    return (
        f"{format_count(len(answers), 'wrong answer')} of RPC endpoints, rejected before the commit: "
        f"{named}. --json has the evidence."
    )
