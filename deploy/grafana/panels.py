"""Panels and dashboards in Grafana's JSON model, as far as ours need it.

A panel is a dict without id and place; `dashboard` gives it both, in rows of 24 columns. Every panel
reads from the data source that the dashboard's variable names, and every expression may use
SELECT, the labels that the other variables select.
"""

SELECT = 'job=~"$job",instance=~"$instance"'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True}


def target(expr, legend="__auto", **more):
    """One query. `more`: instant, format."""
    query = {"expr": expr, "legendFormat": legend, "datasource": DATASOURCE}
    query.update({"instant": True, "range": False} if more.get("instant") else {"range": True})
    query["format"] = more.get("format", "time_series")
    return query


def panel(kind, title, description, targets, unit="short", width=12, height=8, **more):
    """`more`: options, custom (of the field configuration), transformations."""
    defaults = {"unit": unit, "custom": more.get("custom", {}), "min": 0}
    letters = "ABCDEFGH"
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "targets": [dict(query, refId=letters[i]) for i, query in enumerate(targets)],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": more.get("options", {}),
        "transformations": more.get("transformations", []),
        "width": width,
        "height": height,
    }


def lines(title, description, targets, unit="short", stacked=False, **more):
    """A time series; `stacked`: areas on top of each other."""
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 30 if stacked else 5}
    if stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    options = {"legend": LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}}
    return panel("timeseries", title, description, targets, unit, custom=custom, options=options,
                 **more)


def number(title, description, expr, unit="short", width=4):
    """One number, as of now, and a small line of where it comes from."""
    options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "graphMode": "area"}
    return panel("stat", title, description, [target(expr)], unit, width, 4, options=options)


def quantiles(metric):
    """Median, 95th and 99th percentile of a histogram, all instances together."""
    rate = f"sum by (le) (rate({metric}_bucket{{{SELECT}}}[$__rate_interval]))"
    return [target(f"histogram_quantile({q}, {rate})", f"p{round(100 * q)}")
            for q in (0.5, 0.95, 0.99)]


def _variable(name, query):
    return {"type": "query", "name": name, "label": name, "datasource": DATASOURCE, "query": query,
            "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*", "sort": 1,
            "current": {"text": "All", "value": "$__all"}}


def dashboard(uid, title, description, panels):
    placed, x, y, row_height = [], 0, 0, 0
    for number_, source in enumerate(panels, start=1):
        made = dict(source)
        width, height = made.pop("width"), made.pop("height")
        if x + width > 24:
            x, y, row_height = 0, y + row_height, 0
        made.update(id=number_, gridPos={"x": x, "y": y, "w": width, "h": height})
        x, row_height = x + width, max(row_height, height)
        placed.append(made)
    source = {"type": "datasource", "name": "datasource", "label": "data source",
              "query": "prometheus", "refresh": 1, "current": {}}
    variables = [source, _variable("job", "label_values(ziggurat_pool_blocks_total, job)"),
                 _variable("instance",
                           'label_values(ziggurat_pool_blocks_total{job=~"$job"}, instance)')]
    return {
        "uid": uid, "title": title, "description": description, "tags": ["ziggurat"],
        "schemaVersion": 37, "version": 1, "editable": True, "graphTooltip": 1, "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"}, "timezone": "", "links": [
            {"type": "dashboards", "tags": ["ziggurat"], "title": "Ziggurat", "asDropdown": True,
             "keepTime": True, "includeVars": True}],
        "annotations": {"list": []}, "templating": {"list": variables}, "panels": placed}
