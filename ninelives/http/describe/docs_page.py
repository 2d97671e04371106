"""/docs. Owns: the OpenAPI document as one page for people: no script, no asset from anywhere, light and dark. Refuses
to know: where the document comes from."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from typing import Any

import msgspec

Doc = dict[str, Any]  # Any: a JSON document
STYLE = """
:root{color-scheme:light dark;--ink:#1c2128;--soft:#59636e;--line:#d8dee4;--page:#fff;--card:#f6f8fa;--link:#0a58ca;
--get:#1a7f37;--post:#0a58ca;--patch:#9a6700;--delete:#cf222e}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#30363d;--page:#0d1117;--card:#161b22;
--link:#6cb6ff;--get:#3fb950;--post:#6cb6ff;--patch:#d29922;--delete:#f85149}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}
code,pre{font:13.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{background:var(--page);border:1px solid var(--line);border-radius:6px;padding:10px 12px;overflow-x:auto;
margin:6px 0}
.frame{display:grid;grid-template-columns:230px minmax(0,1fr);max-width:1180px;margin:0 auto}
nav{position:sticky;top:0;align-self:start;height:100vh;overflow-y:auto;padding:26px 18px;border-right:1px solid
var(--line);font-size:14px}
nav b{display:block;margin:16px 0 4px;font-size:12px;letter-spacing:.06em;text-transform:uppercase;color:var(--soft)}
nav a{display:block;padding:2px 0;color:var(--ink)}
main{padding:26px 34px 80px;min-width:0}
h1{font-size:28px;margin:0 0 4px}h2{margin:44px 0 12px;padding-bottom:6px;border-bottom:1px solid var(--line)}
h4{margin:16px 0 4px;font-size:13px;letter-spacing:.05em;text-transform:uppercase;color:var(--soft)}
.soft{color:var(--soft)}
details.op{background:var(--card);border:1px solid var(--line);border-radius:8px;margin:10px 0}
details.op>summary{cursor:pointer;padding:10px 14px;display:flex;gap:12px;align-items:baseline;flex-wrap:wrap;
list-style:none}
details.op>summary::-webkit-details-marker{display:none}
details.op>summary:focus-visible{outline:2px solid var(--link);border-radius:8px}
details.op[open]>summary{border-bottom:1px solid var(--line)}
details.op .in{padding:4px 16px 14px;scroll-margin-top:60px}
.verb{font:700 12px ui-monospace,Menlo,Consolas,monospace;min-width:54px;color:var(--page);background:var(--soft);
border-radius:4px;padding:2px 6px;text-align:center}
.get{background:var(--get)}.post{background:var(--post)}.patch{background:var(--patch)}.delete{background:var(--delete)}
.path{font:600 14px ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.open{font-size:12px;border:1px solid var(--line);border-radius:10px;padding:0 8px;color:var(--soft)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:14px}
td,th{text-align:left;vertical-align:top;padding:5px 12px 5px 0;border-top:1px solid var(--line)}
th{border-top:0;font-size:12px;color:var(--soft);font-weight:600}td:first-child{white-space:nowrap}
@media(max-width:760px){.frame{display:block}nav{position:static;height:auto;border:0;border-bottom:1px solid
var(--line)}main{padding:20px 16px 60px}th{display:none}tr{display:block;padding:6px 0;border-top:1px solid var(--line)}
td{display:block;border:0;padding:1px 0}}
"""
_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
SECURITY = (
    f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page(document: Doc) -> str:
    """The page."""
    groups: dict[str, list[tuple[str, str, Doc]]] = {tag["name"]: [] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups[operation["tags"][0]].append((method, path, operation))
    info, schemas = document["info"], document["components"]["schemas"]
    links = "".join(
        f"<b>{escape(tag)}</b>"
        + "".join(f'<a href="#{o["operationId"]}">{escape(o["summary"])}</a>' for _, _, o in ops)
        for tag, ops in groups.items()
    )
    parts = [
        f"<h2>{escape(tag)}</h2>" + "".join(_operation(method, path, o) for method, path, o in ops)
        for tag, ops in groups.items()
    ]
    shapes = "".join(_schema(name, schema) for name, schema in sorted(schemas.items()))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])} API</title><style>{STYLE}</style></head><body><div class=frame>"
        f'<nav aria-label="Operations">{links}<b>Schemas</b><a href="#schemas">All schemas</a></nav><main>'
        f"<h1>{escape(info['title'])} API</h1><p class=soft>Version {escape(info['version'])} &middot; "
        f'<a href="/openapi.json">openapi.json</a></p><p>{_text(info["description"])}</p>'
        "<p>Send your key with every request: <code>Authorization: Bearer YOUR_KEY</code>. Routes marked "
        "<span class=open>open</span> need none.</p>"
        f'{"".join(parts)}<h2 id="schemas">Schemas</h2>{shapes}</main></div></body></html>'
    )


def _operation(method: str, path: str, operation: Doc) -> str:
    free = "<span class=open>open</span>" if "security" in operation else ""
    words = f"<p>{_text(operation['description'])}</p>" if operation["description"] else ""
    return (
        f"<details class=op><summary>"
        f'<span class="verb {method}">{method.upper()}</span>'
        f"<span class=path>{escape(path)}</span><span>{escape(operation['summary'])}</span>{free}</summary>"
        f'<div class=in id="{operation["operationId"]}">'  # inside: a link to it opens the details
        f"{words}{_params(operation['parameters'])}{_body(method, path, operation)}"
        f"<h4>Answers</h4>{_answers(operation['responses'])}</div></details>"
    )


def _params(params: list[Doc]) -> str:
    if not params:
        return ""
    rows = [
        (f"<code>{escape(p['name'])}</code>", p["in"], _kind(p["schema"]), _text(p.get("description", "")))
        for p in params
    ]
    return "<h4>Parameters</h4>" + _table(("name", "in", "type", ""), rows)


def _body(method: str, path: str, operation: Doc) -> str:
    if "requestBody" not in operation:
        return ""
    content = operation["requestBody"]["content"]["application/json"]
    shown = f"<h4>Body</h4><p>{_kind(content['schema'])}</p>"
    if "example" in content:
        text = msgspec.json.encode(content["example"]).decode().replace("'", "'\\''")
        command = (
            f"curl -X {method.upper()} http://127.0.0.1:8642{path} \\\n  -H 'Authorization: Bearer YOUR_KEY' \\\n"
            f"  -H 'Content-Type: application/json' \\\n  -d '{text}'"
        )
        shown += f"<pre>{escape(command)}</pre>"
    return shown


def _answers(responses: Doc) -> str:
    rows = []
    for status, answer in responses.items():
        kinds = [
            f"{escape(media)} {_kind(each['schema']) if media == 'application/json' else ''}"
            for media, each in answer.get("content", {}).items()
        ]
        rows.append((f"<code>{status}</code>", _text(answer["description"]), "<br>".join(kinds)))
    return _table(("status", "", ""), rows)


def _schema(name: str, schema: Doc) -> str:
    needed = schema.get("required", ())
    rows = [
        (f"<code>{escape(field)}</code>", _kind(kind), "required" if field in needed else "")
        for field, kind in schema.get("properties", {}).items()
    ]
    words = f"<p>{_text(schema.get('description', ''))}</p>"
    return (
        f"<details class=op><summary><span class=path>{escape(name)}</span></summary>"
        f'<div class=in id="schema-{escape(name)}">{words}{_table(("field", "type", ""), rows)}</div></details>'
    )


def _kind(schema: Doc) -> str:
    """A schema in one line."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[1])
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(f"<code>{escape(msgspec.json.encode(value).decode())}</code>" for value in schema["enum"])
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        return f"array of {_kind(schema.get('items', {}))}"
    names = {"minimum": "from", "maximum": "to", "maxLength": "at most", "pattern": "like", "default": "default"}
    bounds = ", ".join(f"{word} {schema[name]}" for name, word in names.items() if schema.get(name) is not None)
    return f"{kind} <span class=soft>{escape(bounds)}</span>" if bounds else kind


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{each}</th>" for each in heads)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=wide><table><tr>{head}</tr>{lines}</table></div>" if rows else ""


def _text(words: str) -> str:
    """Plain words; `code` between backticks."""
    pieces = escape(words).split("`")
    return "".join(f"<code>{piece}</code>" if n % 2 else piece for n, piece in enumerate(pieces))
