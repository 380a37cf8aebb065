"""A plugin of pytest: vLLM's tests of its tier in files run on our tier and a real store.

Our tier stands in place of ``FileSystemTierManager``, with the few names that those tests read of
its insides. MOEWIRE_STORE_SERVERS and MOEWIRE_KEY_FILE say where the store is. The salt is the
folder that a test gives its tier, so no test sees the blocks of another. A test that damages the
file of a block makes the server drop that block, as a server does that finds it damaged.
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
    "test_wait_idle_blocks_until_tasks_complete": "its threads alone",
    "test_batch_lookup_c_extension": "its C extension alone",
    "test_batched_load_first_block_fails_marks_whole_batch": "ours keeps what came behind a miss",
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
        self._lookup_manager = self
        self._use_o_direct = False

    @property
    def events(self) -> Any:
        """None: the tier has none."""
        return self._events

    @property
    def _pending_results(self) -> StoreTier:
        return self

    @property
    def _lookup_batch(self) -> list[bytes]:
        """What is to be asked at the end of the step."""
        return [lookup.key for lookup in self._lookups._new]

    def submit_load(self, job_metadata: Any, **more: Any) -> None:
        """A block with bytes in the file that stands for it was damaged."""
        client: Any = self._requests._client
        for key in map(bytes, job_metadata.keys):
            mark = self._marks / key.hex()
            if mark.exists() and mark.stat().st_size:
                assert client.delete([key]) == 1
                mark.unlink()
        super().submit_load(job_metadata, **more)

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
