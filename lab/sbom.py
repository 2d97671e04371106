"""The software bill of materials, sbom.cdx.json. Owns: a CycloneDX 1.6 document of what a server installs: the
dependencies of pyproject.toml with the extras mcp and postgres, at the versions of constraints.txt, with licences from
the metadata of the installed packages. `make sbom` writes it. It has no time in it, so the same packages give the same
bytes. Refuses to know: development tools, the interpreter, and programs of the system such as bubblewrap."""

from __future__ import annotations

import json
import re
import sys
import uuid
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from ninelives import __version__

ROOT = Path(__file__).parents[1]
FILE = ROOT / "sbom.cdx.json"
EXTRAS = ("mcp", "otel", "postgres")
_NAMESPACE = uuid.UUID("7c0f4a52-7f0e-5b3e-9a11-9d1c3a7b5e10")


def normal(name: str) -> str:
    """The name of a package as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(dist: Distribution, extras: set[str]) -> list[Requirement]:
    """What a package needs on this interpreter, with these extras."""
    found = [Requirement(text) for text in dist.requires or ()]
    places = [{"extra": extra} for extra in ("", *sorted(extras))]
    return [each for each in found if each.marker is None or any(each.marker.evaluate(place) for place in places)]


def closure(name: str, extras: set[str]) -> dict[str, set[str]]:
    """Every package that is installed for `name`, each with the names that it needs."""
    needs: dict[str, set[str]] = {}
    asked: dict[str, set[str]] = {}
    waiting = [(normal(name), extras)]
    while waiting:
        package, more = waiting.pop()
        if package in needs and more <= asked[package]:
            continue
        asked[package] = asked.get(package, set()) | more
        found = wanted(distribution(package), asked[package])
        needs[package] = {normal(each.name) for each in found}
        waiting += [(normal(each.name), set(each.extras)) for each in found]
    return needs


def licences(dist: Distribution) -> list[dict[str, object]]:
    """The licence as the package states it."""
    meta = dist.metadata
    if "License-Expression" in meta:
        return [{"expression": meta["License-Expression"]}]
    named = [text.rpartition(" :: ")[2] for text in meta.get_all("Classifier") or () if text.startswith("License ::")]
    named = named or [line for line in "".join(meta.get_all("License") or ()).splitlines()[:1] if line]
    return [{"license": {"name": name}} for name in named]


def component(name: str, *, optional: bool) -> dict[str, object]:
    """One package."""
    dist = distribution(name)
    ref = f"pkg:pypi/{name}@{dist.version}"
    made: dict[str, object] = {"type": "library", "bom-ref": ref, "name": name, "version": dist.version, "purl": ref}
    made["scope"] = "optional" if optional else "required"
    return made | ({"licenses": stated} if (stated := licences(dist)) else {})


def bundled() -> dict[str, object]:
    """SQLite, which the wheel of apsw brings along."""
    import apsw

    version = apsw.sqlite_lib_version()
    ref = f"pkg:generic/sqlite@{version}"
    named = [{"license": {"id": "blessing"}}]
    return {
        **{"type": "library", "bom-ref": ref, "name": "sqlite", "version": version, "purl": ref, "scope": "required"},
        **{"licenses": named, "description": "Compiled into the wheel of apsw."},
    }


def bill() -> dict[str, object]:
    """The document."""
    needs = closure("ninelives", set(EXTRAS))
    required = set(closure("ninelives", set()))
    refs = {name: f"pkg:pypi/{name}@{distribution(name).version}" for name in needs} | {"ninelives": "ninelives"}
    sqlite = bundled()
    listed = [component(name, optional=name not in required) for name in sorted(needs) if name != "ninelives"] + [
        sqlite
    ]
    edges = {refs[name]: sorted(refs[each] for each in found) for name, found in needs.items()}
    edges[refs["apsw"]] = [*edges[refs["apsw"]], str(sqlite["bom-ref"])]
    body: dict[str, object] = {
        "metadata": {
            "component": {
                **{"type": "application", "bom-ref": "ninelives", "name": "ninelives", "version": __version__},
                "licenses": [{"license": {"id": "MIT"}}],
            },
        },
        "components": listed,
        "dependencies": [{"ref": ref, "dependsOn": found} for ref, found in sorted(edges.items())],
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(body, sort_keys=True))
    return {
        **{"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1},
        **body,
    }


def main() -> int:
    """Write the file."""
    FILE.write_text(json.dumps(bill(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"{FILE.name} written", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
