"""Writes Grafana's dashboards from their tables, such as `cluster_dashboard.py`:
`python tools/observability/dashboards.py [--check]`.

Exit status of `--check`: 1 when a file differs from what would be written, and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from cluster_dashboard import CLUSTER
from node_dashboard import NODE_DASHBOARD
from panels import Dashboard, Panel, Variable
from pod_dashboard import POD_DASHBOARD

DASHBOARDS: Final = (CLUSTER, NODE_DASHBOARD, POD_DASHBOARD)
FOLDER: Final = Path(__file__).parents[2] / "k8s/dashboards"
COMMAND: Final = "python tools/observability/dashboards.py"
SCHEMA_VERSION: Final = 36
"""Of Grafana 9.0; later ones read it."""
COLUMNS: Final = 24
STAT: Final = (4, 4)
GRAPH: Final = (8, 8)
"""Width and height of a panel."""
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

Json = dict[str, Any]


def render() -> dict[str, str]:
    """Text by file name."""
    return {
        f"{dashboard.uid.removeprefix('hami-')}.json": json.dumps(_dashboard(dashboard), indent=1) + "\n"
        for dashboard in DASHBOARDS
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, say which files differ")
    options = parser.parse_args(arguments)
    rendered = render()
    stale = [name for name, text in rendered.items() if not _is_fresh(FOLDER / name, text)]
    if options.check:
        sys.stdout.writelines(f"{name}: differs; run {COMMAND}\n" for name in stale)
        return 1 if stale else 0
    for name in stale:
        (FOLDER / name).write_text(rendered[name], encoding="utf-8")
    return 0


def _is_fresh(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def _dashboard(dashboard: Dashboard) -> Json:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.says,
        "tags": ["hami"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "tags": ["hami"],
                "title": "HAMi",
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": [_datasource(), *map(_variable, dashboard.variables)]},
        "panels": _panels(dashboard),
    }


def _datasource() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _variable(variable: Variable) -> Json:
    every: Json = (
        {"includeAll": True, "multi": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}
        if variable.has_all
        else {"includeAll": False, "multi": False}
    )
    return {
        "name": variable.name,
        "label": variable.name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": variable.values, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        **every,
    }


def _panels(dashboard: Dashboard) -> list[Json]:
    """Rows from the top down, panels from left to right."""
    found: list[Json] = []
    top = 0
    for row in dashboard.rows:
        found.append(
            {
                "id": len(found) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
                "panels": [],
            }
        )
        top, left, height = top + 1, 0, 0
        for panel in row.panels:
            width, height = STAT if panel.kind == "stat" else GRAPH
            if left + width > COLUMNS:
                top, left = top + height, 0
            place = {"x": left, "y": top, "w": width, "h": height}
            found.append(_panel(panel, len(found) + 1, place))
            left += width
        top += height
    return found


def _panel(panel: Panel, number: int, place: Json) -> Json:
    shown: Json = (
        {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
        if panel.kind == "stat"
        else {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    )
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": shown,
        "targets": [
            {
                "refId": chr(ord("A") + place_of_query),
                "datasource": DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
            }
            for place_of_query, query in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
