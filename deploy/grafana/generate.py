#!/usr/bin/python3
"""Writes the dashboards: deploy/grafana/generate.py [FOLDER], by default dashboards/ beside it."""
import argparse
import json
import pathlib

from panels import SELECT, dashboard, lines, number, panel, quantiles, target

USED = f"ziggurat_pool_blocks_used{{{SELECT}}}"
RESERVED = f"ziggurat_pool_blocks_reserved{{{SELECT}}}"
TOTAL = f"ziggurat_pool_blocks_total{{{SELECT}}}"
BLOCK_BYTES = f"ziggurat_pool_block_bytes{{{SELECT}}}"
# Blocks that a request was admitted with, in the mean of an hour.
USUAL_BLOCKS = (f"sum(rate(ziggurat_admitted_blocks_sum{{{SELECT}}}[1h]))"
                f" / sum(rate(ziggurat_admitted_blocks_count{{{SELECT}}}[1h]))")


def rate(metric, by="", extra=""):
    """All instances together, by a label or in all."""
    group = f" by ({by})" if by else ""
    return f"sum{group} (rate({metric}{{{SELECT}{extra}}}[$__rate_interval]))"


def mean(histogram):
    return f"{rate(histogram + '_sum')} / {rate(histogram + '_count')}"


def layer_blocks(state):
    return f'sum by (layer) (ziggurat_kv_blocks{{{SELECT},state="{state}"}})'


def kv_memory():
    by_layer = [target(layer_blocks(state), state, instant=True, format="table")
                for state in ("used", "reserved")]
    pyramid = [{"id": "merge", "options": {}},
               {"id": "convertFieldType", "options": {"conversions": [
                   {"targetField": "layer", "destinationType": "number"}]}},
               {"id": "sortBy", "options": {"sort": [{"field": "layer", "desc": True}]}},
               {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": {
                   "Value #A": "used", "Value #B": "reserved"}}}]
    return [
        number("Pool in use", "Blocks used and reserved, of all",
               f"(sum({USED}) + sum({RESERVED})) / sum({TOTAL})", "percentunit"),
        number("Used", "Bytes of blocks that hold KV cache", f"sum({USED} * {BLOCK_BYTES})",
               "bytes"),
        number("Reserved", "Bytes of free blocks that running requests were promised",
               f"sum({RESERVED} * {BLOCK_BYTES})", "bytes"),
        number("Free", "Bytes of blocks that new requests can have",
               f"sum(({TOTAL} - {USED} - {RESERVED}) * {BLOCK_BYTES})", "bytes"),
        number("High-water mark", "Most blocks that a daemon ever used at once, of its pool",
               f"max(ziggurat_pool_blocks_high_water{{{SELECT}}} / {TOTAL})", "percentunit"),
        number("Tail waste", "Share of the used bytes that lies behind the last token",
               f"sum(ziggurat_kv_tail_waste_bytes{{{SELECT}}})"
               f" / clamp_min(sum({USED} * {BLOCK_BYTES}), 1)", "percentunit"),
        panel("barchart", "The ziggurat", "Blocks of every layer now: the shape of the budgets",
              by_layer, width=10, height=12, transformations=pyramid,
              options={"orientation": "horizontal", "stacking": "normal", "xField": "layer",
                       "showValue": "never", "groupWidth": 1, "barWidth": 1}),
        panel("heatmap", "Occupancy by layer", "Used blocks of every layer over time",
              [target(layer_blocks("used"), "{{layer}}")], width=14, height=12,
              options={"calculate": False, "yAxis": {"axisPlacement": "left"},
                       "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64}}),
        lines("Bytes by format", "What the used blocks hold",
              [target(f"sum by (format) (ziggurat_kv_format_blocks{{{SELECT}}}"
                      f" * ignoring (format) group_left () {BLOCK_BYTES})", "{{format}}")],
              "bytes", stacked=True),
        lines("Compression ratio by policy",
              "Blocks that `full` would hold over blocks held, of the last finished requests",
              [target(f"avg by (policy) (ziggurat_kv_compression_ratio{{{SELECT}}})",
                      "{{policy}}")]),
        lines("Pool", "Blocks used, reserved and free",
              [target(f"sum({USED})", "used"), target(f"sum({RESERVED})", "reserved"),
               target(f"sum({TOTAL} - {USED} - {RESERVED})", "free")], stacked=True),
        lines("Tail waste by layer", "Bytes of used blocks behind the last token",
              [target(f"sum by (layer) (ziggurat_kv_tail_waste_bytes{{{SELECT}}})",
                      "layer {{layer}}")], "bytes", stacked=True),
        lines("High-water marks", "Most bytes ever in use at once: the pool and the workspace",
              [target(f"max(ziggurat_pool_blocks_high_water{{{SELECT}}} * {BLOCK_BYTES})", "pool"),
               target(f"max({TOTAL} * {BLOCK_BYTES})", "size of the pool"),
               target(f"max(ziggurat_workspace_high_water_bytes{{{SELECT}}})", "workspace"),
               target(f"max(ziggurat_workspace_capacity_bytes{{{SELECT}}})",
                      "size of the workspace")], "bytes"),
        lines("Lazy layers", "Share of finished requests in which a layer was found lazy",
              [target(f"{rate('ziggurat_lazy_layers_total', 'layer')} / on () group_left ()"
                      f" clamp_min({rate('ziggurat_requests_finished_total')}, 1e-9)",
                      "layer {{layer}}")], "percentunit"),
    ]


def serving():
    return [
        number("Running", "Requests prefilling or decoding",
               f"sum(ziggurat_requests_running{{{SELECT}}})"),
        number("Waiting", "Requests of which nothing has been computed yet",
               f"sum(ziggurat_requests_waiting{{{SELECT}}})"),
        number("Generated", "Tokens generated each second",
               rate("ziggurat_generated_tokens_total")),
        number("Prefilled", "Prompt tokens prefilled each second",
               rate("ziggurat_prompt_tokens_total")),
        number("Errors", "Requests each second that ended in an error of the daemon",
               rate("ziggurat_requests_finished_total", extra=',reason="error"')),
        number("Refused", "Requests refused each second, for whatever reason",
               rate("ziggurat_admissions_refused_total")),
        lines("Throughput", "Tokens each second",
              [target(rate("ziggurat_generated_tokens_total"), "generated"),
               target(rate("ziggurat_prompt_tokens_total"), "prompt")]),
        lines("Requests", "Running and waiting",
              [target(f"sum(ziggurat_requests_running{{{SELECT}}})", "running"),
               target(f"sum(ziggurat_requests_waiting{{{SELECT}}})", "waiting")]),
        lines("Time to first token", "From arrival to the first token",
              quantiles("ziggurat_time_to_first_token_seconds"), "s"),
        lines("Inter-token latency", "Between two tokens of a request",
              quantiles("ziggurat_inter_token_seconds"), "s"),
        lines("Queue time", "From arrival until the prompt is begun",
              quantiles("ziggurat_queue_seconds"), "s"),
        lines("Request time", "From arrival to the end", quantiles("ziggurat_request_seconds"),
              "s"),
        lines("Finish reasons", "Finished requests each second",
              [target(rate("ziggurat_requests_finished_total", "reason"), "{{reason}}")],
              "reqps", stacked=True),
        lines("Refusals", "Requests refused each second",
              [target(rate("ziggurat_admissions_refused_total", "reason"), "{{reason}}"),
               target(rate("ziggurat_preemptions_total"), "preempted")], "reqps", stacked=True),
        lines("Batch", "Sequences of a decode step, and tokens of a step, in the mean",
              [target(mean("ziggurat_decode_batch_size"), "sequences"),
               target(mean("ziggurat_step_tokens"), "tokens")]),
        lines("Where a step's time goes", "Seconds of each second, by part of a step",
              [target(rate("ziggurat_step_seconds_sum", "part"), "{{part}}")], "percentunit",
              stacked=True),
        lines("Prefill and decode", "Seconds of a request, in the mean",
              [target(mean("ziggurat_prefill_seconds"), "prefill"),
               target(mean("ziggurat_decode_seconds"), "decode")], "s"),
        lines("Lengths", "Tokens of a finished request, in the mean",
              [target(mean("ziggurat_request_prompt_tokens"), "prompt"),
               target(mean("ziggurat_request_generated_tokens"), "generated")]),
    ]


def capacity():
    free = f"sum({TOTAL} - {USED} - {RESERVED})"
    return [
        number("More requests that fit", "Free blocks over the blocks of the usual request",
               f"floor({free} / ({USUAL_BLOCKS}))", width=6),
        number("Requests that fit in all", "The pool over the blocks of the usual request",
               f"floor(sum({TOTAL}) / ({USUAL_BLOCKS}))", width=6),
        number("The usual request", "Blocks that a request was admitted with, in the mean of an hour",
               USUAL_BLOCKS, width=6),
        number("The usual request, bytes", "The same in bytes",
               f"({USUAL_BLOCKS}) * avg({BLOCK_BYTES})", "bytes", width=6),
        lines("Room", "Requests that run or wait, and how many more of the usual size fit",
              [target(f"sum(ziggurat_requests_running{{{SELECT}}})", "running"),
               target(f"sum(ziggurat_requests_waiting{{{SELECT}}})", "waiting"),
               target(f"floor({free} / ({USUAL_BLOCKS}))", "fit besides")], stacked=True),
        lines("Room by daemon", "How many more requests of its own usual size each daemon fits",
              [target(f"floor(({TOTAL} - {USED} - {RESERVED})"
                      f" / (rate(ziggurat_admitted_blocks_sum{{{SELECT}}}[1h])"
                      f" / rate(ziggurat_admitted_blocks_count{{{SELECT}}}[1h])))",
                      "{{instance}}")]),
        lines("Utilization", "Blocks used and reserved, of all",
              [target(f"ziggurat_kv_utilization{{{SELECT}}}", "{{instance}}")], "percentunit"),
        lines("Highest utilization of a day", "What the peaks of the last 24 hours came to",
              [target(f"max_over_time(ziggurat_kv_utilization{{{SELECT}}}[1d])",
                      "{{instance}}")], "percentunit"),
        lines("Blocks that requests were admitted with", "Median, and the largest of 20 and of 100",
              quantiles("ziggurat_admitted_blocks")),
        lines("Promised and never used", "Reserved blocks over used and reserved ones",
              [target(f"sum({RESERVED}) / clamp_min(sum({USED}) + sum({RESERVED}), 1)",
                      "reserved")], "percentunit"),
    ]


DASHBOARDS = {
    "kv-memory": ("KV memory", "Where the memory of the KV cache goes, layer by layer", kv_memory),
    "serving": ("Serving", "Throughput, latency and what became of the requests", serving),
    "capacity": ("Capacity", "How many more requests fit", capacity),
}


def to_json(board):
    """A panel on each line: what changed is then what a diff shows."""
    own = {key: board[key] for key in ("uid", "title", "description")}
    common = {key: value for key, value in board.items() if key not in own and key != "panels"}
    head = [json.dumps(own)[1:-1] + ",", json.dumps(common)[1:-1] + ",", '"panels": [']
    rows = ",\n".join(" " + json.dumps(made) for made in board["panels"])
    return "{\n" + "\n".join(head) + "\n" + rows + "\n]\n}\n"


def main():
    parser = argparse.ArgumentParser(description="Writes the dashboards that this file lays out.")
    parser.add_argument("folder", nargs="?", type=pathlib.Path, metavar="FOLDER",
                        default=pathlib.Path(__file__).resolve().parent / "dashboards",
                        help="where to, by default %(default)s")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, (title, description, panels) in DASHBOARDS.items():
        board = dashboard("ziggurat-" + name, "Ziggurat: " + title, description, panels())
        (folder / (name + ".json")).write_text(to_json(board))


if __name__ == "__main__":
    main()
