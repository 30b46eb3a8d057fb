"""What Envoy may do by itself while no balancer answers, and what it refuses then.

Requests go around a balancer that is away: Envoy sends them to a worker of its own choice. Where that would break what
the config promises, Envoy refuses instead (503, UNAVAILABLE), model by model. Where the balancer forwards, only who
reads the message knows its model, so requests go around by a listener within Envoy that does.
"""

from __future__ import annotations

from dataclasses import dataclass

from balancer.bootstrap import nodes
from balancer.bootstrap.native import add_internal, internal_listener
from balancer.bootstrap.nodes import Node
from balancer.extproc import names
from balancer.extproc.responses import PUSHBACK

_KEEP = """\
local everything, kept = %(everything)s, {%(models)s}
local function decoded(digits) return string.char(tonumber(digits, 16)) end
local function refuse(request, why)
  local kind = request:headers():get("content-type") or ""
  if kind:find("^application/grpc") then
    request:respond({[":status"] = "200", ["content-type"] = "application/grpc", ["grpc-status"] = "14",
      ["grpc-message"] = why, ["grpc-retry-pushback-ms"] = "1000"})
  else
    request:respond({[":status"] = "503", ["content-type"] = "application/json", ["retry-after"] = "1"},
      '{"error":"' .. why .. '"}')
  end
end
function envoy_on_request(request)
  if request:headers():get("%(forwarded)s") and not %(around)s then return end
  local metadata = request:streamInfo():dynamicMetadata()
  local pick = metadata:get("%(namespace)s")
  if pick and pick["%(destination)s"] then return end
  local fields = metadata:get("%(extraction)s")
  local path = request:headers():get(":path"):match("^[^?]*")
  local asked = path:match("^/v2/models/([^/]+)/.*infer$") or path:match("^/v2/models/([^/]+)/.*generate$")
    or path:match("^/v2/models/([^/]+)/.*generate_stream$")
  local why = asked and kept[(asked:gsub("%%%%(%%x%%x)", decoded))]
  for _, name in ipairs(fields and fields["model_name"] or {}) do why = why or kept[name] end
  local encoding = (request:headers():get("grpc-encoding") or ""):lower()
  if path:find("Infer$") and (encoding == "gzip" or encoding == "deflate") then
    why = why or "what some models promise, and cannot read which model a compressed message is for"
  end
  why = why or everything
  if why then refuse(request, "no balancer answers, and Envoy alone cannot keep " .. why .. "; retry later") end
end
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """What only a balancer keeps, in words by the name of the model that it is promised of."""

    picked: tuple[tuple[str, str], ...] = ()
    """By whoever chooses a worker."""
    forwarded: tuple[tuple[str, str], ...] = ()
    """By a balancer that forwards, beside those of `picked`."""
    of_all: str = ""
    """By a balancer that forwards, of each model; empty: nothing."""


NOTHING_KEPT = Kept()


def refuse_unpicked(listener: Node, kept: Kept) -> None:
    """Have Envoy refuse requests for these models that go on without a pick."""
    if kept.picked:
        _insert(listener, _filter(kept.picked, "", around=False))


def go_around(bootstrap: Node, listener: Node, kept: Kept) -> None:
    """Add the listener by which forwarded requests go around the balancer; `listener`: one that asks for picks."""
    around = internal_listener(listener, names.AROUND)
    manager = nodes.manager_of(around)
    manager["access_log"] = []
    manager["http_filters"][-1]["typed_config"].pop("upstream_log", None)
    manager.pop("tracing", None)
    manager["http_filters"] = [each for each in manager["http_filters"] if each["name"] not in _OF_PICKS]
    for route in nodes.routes_of(manager):
        route.pop("typed_per_filter_config", None)
        if route["name"] == names.COMPRESSED_ROUTE:
            # Whose it is cannot be read here.
            del route["route"]
            route.update(_REFUSED_COMPRESSED)
    _insert(around, _filter((*kept.forwarded, *kept.picked), kept.of_all, around=True))
    add_internal(bootstrap, around)


_REFUSED_COMPRESSED: Node = {
    "direct_response": {
        "status": 503,
        "body": {"inline_string": "no balancer answers that could read a compressed message; retry later"},
    },
    "response_headers_to_add": [{"header": {"key": PUSHBACK, "value": "1000"}}],
    "typed_per_filter_config": {names.EXTRACTION: nodes.off()},
}
_OF_PICKS = (names.PICKS_FILTER, names.SPLIT_NAMESPACE)


def _filter(models: tuple[tuple[str, str], ...], of_all: str, *, around: bool) -> Node:
    code = _KEEP % {
        "everything": in_lua(of_all) if of_all else "false",
        "models": ", ".join(f"[{in_lua(name)}] = {in_lua(why)}" for name, why in models),
        "around": "true" if around else "false",
        **{"forwarded": names.FORWARDED_HEADER, "extraction": names.EXTRACTION},
        **{"namespace": names.DESTINATION_NAMESPACE, "destination": names.DESTINATION},
    }
    return nodes.script(names.KEPT_FILTER, code)


def in_lua(text: str) -> str:
    """A text as Lua reads it, byte by byte, whatever is in it."""
    return '"' + "".join(f"\\{byte:03d}" for byte in text.encode()) + '"'


def _insert(listener: Node, new: Node) -> None:
    """Before the router."""
    nodes.manager_of(listener)["http_filters"].insert(-1, new)
