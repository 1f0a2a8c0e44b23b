"""Every expression of every rule and panel, asked of a real Prometheus that scrapes a daemon under
load: each must have data."""
import math
import tempfile
import time
import unittest

from expressions import ROOT, all_expressions, of_tls
from running import Daemon, Prometheus, wait_until

LOAD_SECONDS = 12
LONGEST_LOAD_SECONDS = 300
POLICIES = ("full", "pyramidkv(budget=256,window=16)", "simlayerkv+kivi(bits=4)", "streaming",
            "pod(groups=needle,sinks=4,recent=64,skip=0.8)")
GROUPS = ROOT / "models/needle-llama/pod-groups.json"


def finished(daemon):
    samples = daemon.metrics()
    return sum(samples[f'ziggurat_requests_finished_total{{reason="{reason}"}}']
               for reason in ("stop", "length"))


def load(daemon, seconds):
    """Keeps a few requests of several policies running; the last are running at the end."""
    prompt = (ROOT / "models/needle-llama/example-prompt.txt").read_text()
    begin = time.monotonic()
    running, started = [], 0
    # However slow the machine is, each policy has finished a request.
    while time.monotonic() < begin + seconds or finished(daemon) < 2 * len(POLICIES):
        if time.monotonic() > begin + LONGEST_LOAD_SECONDS:
            raise TimeoutError(f"only {finished(daemon)} requests have finished")
        running = [process for process in running if process.poll() is None]
        while len(running) < 4:
            policy = POLICIES[started % len(POLICIES)]
            running.append(daemon.generate(prompt, "--compression", policy, "--max-tokens", "60"))
            started += 1
        time.sleep(0.05)


class LivePrometheus(unittest.TestCase):
    def test_every_expression_returns_data(self):
        with tempfile.TemporaryDirectory() as folder, \
                Daemon(folder, "--kv-cache-memory", "16MiB", "--pod-groups", f"needle={GROUPS}") as daemon, \
                Prometheus(folder, daemon.http,
                           daemon.http.replace("127.0.0.1", "localhost")) as prometheus:
            # The same daemon by two names is two daemons, as far as expressions are concerned.
            wait_until(lambda: prometheus.query("up") == [1, 1], 30, "no scrape")
            load(daemon, LOAD_SECONDS)
            asked = 0
            for where, expression in all_expressions():
                if of_tls(expression):
                    continue  # kubernetes_tls_test asks them of a daemon that has data.
                with self.subTest(where=where, expression=expression):
                    values = prometheus.query(expression)
                    numbers = [value for value in values if not math.isnan(value)]
                    print(f"{len(values):4} samples  {where}: {expression}")
                    self.assertTrue(numbers, "no data" if not values else "nothing but NaN")
                asked += 1
            self.assertGreater(asked, 80)
            for rule in prometheus.rules():
                self.assertEqual(rule["health"], "ok", rule)
            self.assertIsNone(daemon.process.poll())


# What the dashboard that vLLM publishes asks for, and whether it is a histogram.
DASHBOARD = {
    "e2e_request_latency_seconds": True, "time_per_output_token_seconds": True,
    "inter_token_latency_seconds": True, "time_to_first_token_seconds": True,
    "request_prompt_tokens": True, "request_generation_tokens": True,
    "request_queue_time_seconds": True, "request_prefill_time_seconds": True,
    "request_decode_time_seconds": True, "request_max_num_generation_tokens": True,
    "prompt_tokens_total": False, "generation_tokens_total": False, "num_requests_running": False,
    "num_requests_waiting": False, "gpu_cache_usage_perc": False, "kv_cache_usage_perc": False,
    "request_success_total": False,
}


class VllmNames(unittest.TestCase):
    """What an endpoint picker and vLLM's dashboards read of a running daemon."""

    def test_are_there_with_the_same_values(self):
        with tempfile.TemporaryDirectory() as folder, \
                Daemon(folder, "--metrics-compat", "vllm") as daemon:
            self.assertEqual(daemon.generate(" The old house", "--max-tokens", "8").wait(60), 0)
            wait_until(lambda: daemon.metrics()["ziggurat_requests_running"] == 0, 10, "no end")
            samples = daemon.metrics()
        label = '{model_name="needle-llama"}'
        same = {"ziggurat_requests_waiting": "vllm:num_requests_waiting",
                "ziggurat_requests_running": "vllm:num_requests_running",
                "ziggurat_kv_utilization": "vllm:kv_cache_usage_perc",
                "ziggurat_prompt_tokens_total": "vllm:prompt_tokens_total",
                "ziggurat_generated_tokens_total": "vllm:generation_tokens_total",
                "ziggurat_request_seconds_sum": "vllm:e2e_request_latency_seconds_sum",
                "ziggurat_queue_seconds_count": "vllm:request_queue_time_seconds_count"}
        for ours, theirs in same.items():
            self.assertEqual(samples[ours], samples[theirs + label], theirs)
        self.assertEqual(samples["ziggurat_generated_tokens_total"], 8)
        for name in DASHBOARD:
            for suffix in ("_bucket", "_sum", "_count") if DASHBOARD[name] else ("",):
                self.assertTrue(any(sample.startswith(f"vllm:{name}{suffix}{{")
                                    for sample in samples), name + suffix)
        config = [name for name in samples if name.startswith("vllm:cache_config_info{")]
        blocks = int(samples["ziggurat_pool_blocks_total"] / 8)
        self.assertEqual(len(config), 1)
        self.assertIn(f'num_gpu_blocks="{blocks}"', config[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
