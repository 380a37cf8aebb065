"""A plugin of pytest: vLLM's tests of its tier in files run on our tier and a real store.

Our tier stands in place of ``FileSystemTierManager``, with the few names that those tests read of
its insides. MOEWIRE_STORE_SERVERS and MOEWIRE_KEY_FILE say where the store is. The salt is the
folder that a test gives its tier, so no test sees the blocks of another.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.v1.kv_offload.tiering.fs import manager

from moewire.integrations.vllm.offload.tier import MoewireTier

# Tests that are about files, and why each is. All others of the module run.
ABOUT_FILES = {
    "test_invalid_path_raises_at_construction": "a path that cannot be written",
    "test_invalid_locality_raises_at_construction": "words of the error: ours name the option",
    "test_shutdown_discards_pending_tasks": "queues of its threads",
    "test_store_load_roundtrip_without_o_direct": "a flag of open(2)",
    "test_wait_idle_blocks_until_tasks_complete": "its threads alone",
    "test_batch_lookup_c_extension": "its C extension alone",
    "test_failed_load_corrects_verdict_and_removes_corrupt_file": "cuts a file short",
    "test_batched_partial_load_failure_keeps_loaded_blocks": "cuts a file short",
    "test_batched_load_first_block_fails_marks_whole_batch": "cuts a file short",
    "test_transient_load_failure_leaves_file": "a file that cannot be opened",
    "test_mixed_job_results_emit_event_only_for_successful_job": "replaces what writes a file",
    "test_partially_failed_store_emits_no_event": "replaces what writes a file",
    "test_fs_tier_cross_tp_round_trip": "shares blocks between tensor-parallel sizes; ours do not",
}


class StoreTier(MoewireTier):
    """Our tier, made as theirs is."""

    def __init__(self, *arguments: Any, root_dir: str, **options: Any) -> None:
        for name in ("n_read_threads", "n_write_threads"):
            options.pop(name, None)
        options |= {"salt": root_dir, "weights": "w", "timeout_us": 5_000_000}
        super().__init__(*arguments, **options)
        self.file_mapper = SimpleNamespace(get_file_name=self._mark_of)
        self._marks = Path(root_dir)
        self._store_job_keys: dict[int, Any] = {}
        self._lookup_manager = SimpleNamespace(_pending_results=self)

    @property
    def events(self) -> Any:
        """None: the tier has none."""
        return self._events

    def empty(self) -> bool:
        """Whether answers are still to come, as their queue of answers says it."""
        self._requests.poll()
        return not self._requests.idle()

    def _mark_of(self, key: bytes) -> str:
        """A file that is there if the store has the block."""
        mark = self._marks / bytes(key).hex()
        client: Any = self._requests._client
        if client.exists([bytes(key)]) == [True]:
            mark.touch()
        return str(mark)


manager.FileSystemTierManager = StoreTier


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leaves out what is about files; a name that is no test is an error."""
    names = {item.originalname for item in items}
    unknown = set(ABOUT_FILES) - names
    assert not unknown, f"no such tests: {sorted(unknown)}"
    left = [item for item in items if item.originalname in ABOUT_FILES]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item.originalname not in ABOUT_FILES]
