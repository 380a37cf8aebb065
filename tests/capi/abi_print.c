/*
 * Prints the headers as a C compiler sees them, as JSON: sizes and offsets of structs,
 * values of constants. test_capi.py compares it with _abi.py. The lists are complete: the
 * test compares their names with the headers', too.
 */
#include <stddef.h>
#include <stdio.h>

#include "moewire_fabric.h"

#define OPEN(type) printf("%s\"%s\": {\"\": %zu", first ? "" : ",\n  ", #type, sizeof(type)), first = 0
#define FIELD(type, name) printf(", \"%s\": %zu", #name, offsetof(type, name))
#define CLOSE() printf("}")
#define CONSTANT(name) printf("%s\"%s\": %lld", first ? "" : ",\n  ", #name, (long long)(name)), first = 0

static void print_config(int first)
{
	OPEN(mw_config_t);
	FIELD(mw_config_t, size);
	FIELD(mw_config_t, flags);
	FIELD(mw_config_t, rank);
	FIELD(mw_config_t, num_ranks);
	FIELD(mw_config_t, num_bytes);
	FIELD(mw_config_t, num_slots);
	FIELD(mw_config_t, vector_width);
	FIELD(mw_config_t, stores);
	FIELD(mw_config_t, huge_pages);
	FIELD(mw_config_t, numa);
	FIELD(mw_config_t, num_threads);
	FIELD(mw_config_t, prefetch);
	FIELD(mw_config_t, spin_us);
	FIELD(mw_config_t, slow_after_us);
	FIELD(mw_config_t, transport);
	FIELD(mw_config_t, protection);
	FIELD(mw_config_t, listen);
	FIELD(mw_config_t, keys);
	FIELD(mw_config_t, host);
	FIELD(mw_config_t, ring_bytes);
	FIELD(mw_config_t, unresponsive_after_us);
	FIELD(mw_config_t, key_file);
	FIELD(mw_config_t, rdma_devices);
	FIELD(mw_config_t, rdma_gid);
	FIELD(mw_config_t, rdma_near);
	FIELD(mw_config_t, tcp_zero_copy);
	FIELD(mw_config_t, reserved);
	FIELD(mw_config_t, device);
	FIELD(mw_config_t, device_ordinal);
	FIELD(mw_config_t, cuda_driver);
	FIELD(mw_config_t, cuda_code);
	FIELD(mw_config_t, cuda_nvrtc);
	CLOSE();
	OPEN(mw_shape_t);
	FIELD(mw_shape_t, size);
	FIELD(mw_shape_t, num_slots);
	FIELD(mw_shape_t, num_max_tokens_per_rank);
	FIELD(mw_shape_t, hidden);
	FIELD(mw_shape_t, num_ranks);
	FIELD(mw_shape_t, num_experts);
	FIELD(mw_shape_t, flags);
	FIELD(mw_shape_t, reserved);
	FIELD(mw_shape_t, num_topk);
	FIELD(mw_shape_t, extra_row_bytes);
	CLOSE();
	OPEN(mw_bytes_t);
	FIELD(mw_bytes_t, address);
	FIELD(mw_bytes_t, num_bytes);
	CLOSE();
}

static void print_handles(int first)
{
	OPEN(mw_buffer_t);
	FIELD(mw_buffer_t, id);
	CLOSE();
	OPEN(mw_handle_t);
	FIELD(mw_handle_t, id);
	CLOSE();
	OPEN(mw_op_t);
	FIELD(mw_op_t, id);
	CLOSE();
	OPEN(mw_memory_t);
	FIELD(mw_memory_t, id);
	CLOSE();
}

static void print_counters(int first)
{
	OPEN(mw_counters_t);
	FIELD(mw_counters_t, size);
	FIELD(mw_counters_t, num_ranks);
	FIELD(mw_counters_t, num_dispatches);
	FIELD(mw_counters_t, num_combines);
	FIELD(mw_counters_t, num_rows_sent);
	FIELD(mw_counters_t, num_rows_received);
	FIELD(mw_counters_t, num_rows_reduced);
	FIELD(mw_counters_t, num_bytes_placed);
	FIELD(mw_counters_t, num_bytes_reduced);
	FIELD(mw_counters_t, num_bytes_copied);
	FIELD(mw_counters_t, slab_bytes);
	FIELD(mw_counters_t, wait_ns);
	FIELD(mw_counters_t, num_rows_sent_to);
	FIELD(mw_counters_t, wait_ns_for);
	CLOSE();
	OPEN(mw_members_t);
	FIELD(mw_members_t, size);
	FIELD(mw_members_t, epoch);
	FIELD(mw_members_t, ranks);
	FIELD(mw_members_t, num_lost);
	CLOSE();
}

static void print_record(int first)
{
	OPEN(mw_record_t);
	FIELD(mw_record_t, size);
	FIELD(mw_record_t, sequence);
	FIELD(mw_record_t, kind);
	FIELD(mw_record_t, outcome);
	FIELD(mw_record_t, epoch);
	FIELD(mw_record_t, last_rank);
	FIELD(mw_record_t, combine);
	FIELD(mw_record_t, num_tokens);
	FIELD(mw_record_t, operation);
	FIELD(mw_record_t, start_ns);
	FIELD(mw_record_t, place_ns);
	FIELD(mw_record_t, sent_ns);
	FIELD(mw_record_t, resume_ns);
	FIELD(mw_record_t, seen_ns);
	FIELD(mw_record_t, end_ns);
	FIELD(mw_record_t, wait_ns);
	FIELD(mw_record_t, last_alone_ns);
	FIELD(mw_record_t, num_rows);
	FIELD(mw_record_t, num_rows_received);
	FIELD(mw_record_t, num_bytes);
	FIELD(mw_record_t, prefault_bytes);
	FIELD(mw_record_t, waited_for);
	CLOSE();
}

static void print_link(int first)
{
	OPEN(mw_link_t);
	FIELD(mw_link_t, size);
	FIELD(mw_link_t, rank);
	FIELD(mw_link_t, carrier);
	FIELD(mw_link_t, state);
	FIELD(mw_link_t, num_messages_sent);
	FIELD(mw_link_t, num_bytes_sent);
	FIELD(mw_link_t, num_messages_received);
	FIELD(mw_link_t, num_bytes_received);
	FIELD(mw_link_t, num_blocked);
	FIELD(mw_link_t, num_dropped);
	FIELD(mw_link_t, num_ignored);
	FIELD(mw_link_t, num_credits);
	FIELD(mw_link_t, num_max_credits);
	FIELD(mw_link_t, heard_ns);
	FIELD(mw_link_t, num_beats);
	FIELD(mw_link_t, clock_ahead_ns);
	FIELD(mw_link_t, num_reconnects);
	CLOSE();
}

static void print_dispatch(int first)
{
	OPEN(mw_dispatch_result_t);
	FIELD(mw_dispatch_result_t, size);
	FIELD(mw_dispatch_result_t, peers_have_more);
	FIELD(mw_dispatch_result_t, handle);
	FIELD(mw_dispatch_result_t, memory);
	FIELD(mw_dispatch_result_t, recv_x);
	FIELD(mw_dispatch_result_t, recv_scales);
	FIELD(mw_dispatch_result_t, src_info);
	FIELD(mw_dispatch_result_t, combine_x);
	FIELD(mw_dispatch_result_t, memory_address);
	FIELD(mw_dispatch_result_t, memory_bytes);
	FIELD(mw_dispatch_result_t, recv_topk_idx);
	FIELD(mw_dispatch_result_t, recv_topk_weights);
	FIELD(mw_dispatch_result_t, recv_extra);
	CLOSE();
	OPEN(mw_dispatch_args_t);
	FIELD(mw_dispatch_args_t, size);
	FIELD(mw_dispatch_args_t, flags);
	FIELD(mw_dispatch_args_t, x);
	FIELD(mw_dispatch_args_t, topk_idx);
	FIELD(mw_dispatch_args_t, num_tokens);
	FIELD(mw_dispatch_args_t, hidden);
	FIELD(mw_dispatch_args_t, num_topk);
	FIELD(mw_dispatch_args_t, num_max_tokens_per_rank);
	FIELD(mw_dispatch_args_t, num_experts);
	FIELD(mw_dispatch_args_t, active_ranks);
	FIELD(mw_dispatch_args_t, num_active_ranks);
	FIELD(mw_dispatch_args_t, timeout_us);
	FIELD(mw_dispatch_args_t, slice_us);
	FIELD(mw_dispatch_args_t, phase);
	FIELD(mw_dispatch_args_t, reserved);
	FIELD(mw_dispatch_args_t, recv_count);
	FIELD(mw_dispatch_args_t, layout_range);
	FIELD(mw_dispatch_args_t, result);
	FIELD(mw_dispatch_args_t, topk_weights);
	FIELD(mw_dispatch_args_t, extra);
	FIELD(mw_dispatch_args_t, extra_row_bytes);
	FIELD(mw_dispatch_args_t, stream);
	FIELD(mw_dispatch_args_t, peers_have_more);
	FIELD(mw_dispatch_args_t, wait_ns);
	CLOSE();
}

static void print_combine(int first)
{
	OPEN(mw_combine_args_t);
	FIELD(mw_combine_args_t, size);
	FIELD(mw_combine_args_t, flags);
	FIELD(mw_combine_args_t, handle);
	FIELD(mw_combine_args_t, x);
	FIELD(mw_combine_args_t, topk_idx);
	FIELD(mw_combine_args_t, topk_weights);
	FIELD(mw_combine_args_t, out);
	FIELD(mw_combine_args_t, num_tokens);
	FIELD(mw_combine_args_t, num_topk);
	FIELD(mw_combine_args_t, active_ranks);
	FIELD(mw_combine_args_t, num_active_ranks);
	FIELD(mw_combine_args_t, timeout_us);
	FIELD(mw_combine_args_t, slice_us);
	FIELD(mw_combine_args_t, phase);
	FIELD(mw_combine_args_t, reserved);
	FIELD(mw_combine_args_t, stream);
	FIELD(mw_combine_args_t, wait_ns);
	CLOSE();
}

static void print_fabric(int first)
{
	OPEN(mw_fabric_t);
	FIELD(mw_fabric_t, id);
	CLOSE();
	OPEN(mw_region_t);
	FIELD(mw_region_t, id);
	CLOSE();
	OPEN(mw_transfer_t);
	FIELD(mw_transfer_t, id);
	CLOSE();
	OPEN(mw_fabric_config_t);
	FIELD(mw_fabric_config_t, size);
	FIELD(mw_fabric_config_t, flags);
	FIELD(mw_fabric_config_t, carrier);
	FIELD(mw_fabric_config_t, key_source);
	FIELD(mw_fabric_config_t, keys);
	FIELD(mw_fabric_config_t, listen);
	FIELD(mw_fabric_config_t, interface_name);
	FIELD(mw_fabric_config_t, advertise);
	FIELD(mw_fabric_config_t, epoch);
	FIELD(mw_fabric_config_t, num_peers);
	FIELD(mw_fabric_config_t, num_connections);
	FIELD(mw_fabric_config_t, num_transfers);
	FIELD(mw_fabric_config_t, num_regions);
	FIELD(mw_fabric_config_t, send_depth);
	FIELD(mw_fabric_config_t, recv_depth);
	FIELD(mw_fabric_config_t, num_unmatched);
	FIELD(mw_fabric_config_t, num_sockets);
	FIELD(mw_fabric_config_t, slice_bytes);
	FIELD(mw_fabric_config_t, connect_timeout_us);
	FIELD(mw_fabric_config_t, drain_timeout_us);
	FIELD(mw_fabric_config_t, rdma_devices);
	FIELD(mw_fabric_config_t, rdma_gid);
	FIELD(mw_fabric_config_t, rdma_near);
	FIELD(mw_fabric_config_t, tcp_zero_copy);
	FIELD(mw_fabric_config_t, eviction);
	CLOSE();
	OPEN(mw_remote_t);
	FIELD(mw_remote_t, size);
	FIELD(mw_remote_t, reserved);
	FIELD(mw_remote_t, address);
	FIELD(mw_remote_t, num_bytes);
	FIELD(mw_remote_t, key);
	CLOSE();
	OPEN(mw_transfer_args_t);
	FIELD(mw_transfer_args_t, size);
	FIELD(mw_transfer_args_t, kind);
	FIELD(mw_transfer_args_t, peer);
	FIELD(mw_transfer_args_t, region);
	FIELD(mw_transfer_args_t, offset);
	FIELD(mw_transfer_args_t, num_bytes);
	FIELD(mw_transfer_args_t, remote_address);
	FIELD(mw_transfer_args_t, remote_num_bytes);
	FIELD(mw_transfer_args_t, remote_key);
	FIELD(mw_transfer_args_t, remote_offset);
	FIELD(mw_transfer_args_t, imm);
	FIELD(mw_transfer_args_t, reserved);
	CLOSE();
	OPEN(mw_transfer_result_t);
	FIELD(mw_transfer_result_t, size);
	FIELD(mw_transfer_result_t, status);
	FIELD(mw_transfer_result_t, num_bytes);
	FIELD(mw_transfer_result_t, imm);
	FIELD(mw_transfer_result_t, released);
	CLOSE();
}

static void print_fabric_constants(int first)
{
	CONSTANT(MW_CARRIER_TCP);
	CONSTANT(MW_CARRIER_RDMA);
	CONSTANT(MW_FABRIC_MESSAGES);
	CONSTANT(MW_FABRIC_ENCRYPT);
	CONSTANT(MW_FABRIC_RDMA_DC);
	CONSTANT(MW_KEYS_FILE);
	CONSTANT(MW_KEYS_ENV);
	CONSTANT(MW_KEYS_BYTES);
	CONSTANT(MW_EVICT_SIEVE);
	CONSTANT(MW_EVICT_FIFO);
	CONSTANT(MW_MAX_HANDSHAKE_BYTES);
	CONSTANT(MW_ACCESS_WRITE);
	CONSTANT(MW_ACCESS_READ);
	CONSTANT(MW_TRANSFER_SEND);
	CONSTANT(MW_TRANSFER_RECV);
	CONSTANT(MW_TRANSFER_WRITE);
	CONSTANT(MW_TRANSFER_WRITE_IMM);
	CONSTANT(MW_TRANSFER_READ);
	CONSTANT(MW_TRANSFER_RECEIVE_IMM);
	CONSTANT(MW_UNTIL_ENDED);
	CONSTANT(MW_UNTIL_RELEASED);
}

static void print_constants(int first)
{
	CONSTANT(MW_ABI_VERSION);
	CONSTANT(MW_MAX_RANKS);
	CONSTANT(MW_MAX_TOPK);
	CONSTANT(MW_MAX_EXTRAS);
	CONSTANT(MW_MAX_EXTRA_BYTES);
	CONSTANT(MW_OK);
	CONSTANT(MW_IN_PROGRESS);
	CONSTANT(MW_ERR_INVALID_ARGUMENT);
	CONSTANT(MW_ERR_HANDLE);
	CONSTANT(MW_ERR_STALE_HANDLE);
	CONSTANT(MW_ERR_CLOSED);
	CONSTANT(MW_ERR_TIMEOUT);
	CONSTANT(MW_ERR_PEER_LOST);
	CONSTANT(MW_ERR_PEER_MISMATCH);
	CONSTANT(MW_ERR_FENCED);
	CONSTANT(MW_ERR_NO_MEMORY);
	CONSTANT(MW_ERR_SYSTEM);
	CONSTANT(MW_ERR_FORKED);
	CONSTANT(MW_ERR_PANIC);
	CONSTANT(MW_ERR_CANCELLED);
	CONSTANT(MW_ERR_NOT_COMBINED);
	CONSTANT(MW_ERR_METADATA);
	CONSTANT(MW_ERR_UPDATING);
	CONSTANT(MW_ERR_WOULD_BLOCK);
	CONSTANT(MW_ERR_CONNECTING);
	CONSTANT(MW_ERR_UNREACHABLE);
	CONSTANT(MW_ERR_REFUSED);
	CONSTANT(MW_ERR_NO_RESOURCE);
	CONSTANT(MW_ERR_BUSY);
	CONSTANT(MW_ERR_NOT_SUPPORTED);
	CONSTANT(MW_ERR_NO_DEVICE);
	CONSTANT(MW_ERR_DEVICE);
	CONSTANT(MW_DEVICE_CPU);
	CONSTANT(MW_DEVICE_CUDA);
	CONSTANT(MW_CONFIG_DEBUG_FILL);
	CONSTANT(MW_CONFIG_DETERMINISTIC);
	CONSTANT(MW_CONFIG_KILL_FENCED);
	CONSTANT(MW_CONFIG_NO_RECORD);
	CONSTANT(MW_CONFIG_RDMA_DC);
	CONSTANT(MW_LINK_TCP);
	CONSTANT(MW_LINK_VERBS);
	CONSTANT(MW_LINK_UP);
	CONSTANT(MW_LINK_UNRESPONSIVE);
	CONSTANT(MW_LINK_BROKEN);
	CONSTANT(MW_LINK_ENDED);
	CONSTANT(MW_LINK_OUT);
	CONSTANT(MW_RECORD_DISPATCH);
	CONSTANT(MW_RECORD_COMBINE);
	CONSTANT(MW_OUTCOME_DONE);
	CONSTANT(MW_OUTCOME_FAILED);
	CONSTANT(MW_OUTCOME_CANCELLED);
	CONSTANT(MW_MAX_RECORDS);
	CONSTANT(MW_DISPATCH_FP8);
	CONSTANT(MW_DISPATCH_HAS_MORE);
	CONSTANT(MW_DISPATCH_ROUND_SCALE);
	CONSTANT(MW_DISPATCH_UE8M0);
	CONSTANT(MW_DISPATCH_FP32_OUTPUTS);
	CONSTANT(MW_DISPATCH_FLAT);
	CONSTANT(MW_DISPATCH_NO_ROUTING);
	CONSTANT(MW_DISPATCH_PRE_REDUCE);
	CONSTANT(MW_DISPATCH_KEEP_HELD);
	CONSTANT(MW_TOPK_IDX_INT32);
	CONSTANT(MW_TOPK_WEIGHTS_BF16);
	CONSTANT(MW_TOPK_WEIGHTS_FP16);
	printf(",\n  \"MW_STREAM_NONE\": %llu", (unsigned long long)MW_STREAM_NONE);
	CONSTANT(MW_TRANSPORT_AUTO);
	CONSTANT(MW_TRANSPORT_SHM);
	CONSTANT(MW_TRANSPORT_TCP);
	CONSTANT(MW_TRANSPORT_RDMA);
	CONSTANT(MW_PROTECTION_DIGEST);
	CONSTANT(MW_PROTECTION_ENCRYPT);
	CONSTANT(MW_ZERO_COPY_AUTO);
	CONSTANT(MW_ZERO_COPY_ON);
	CONSTANT(MW_ZERO_COPY_OFF);
	CONSTANT(MW_STORES_AUTO);
	CONSTANT(MW_STORES_CACHED);
	CONSTANT(MW_STORES_STREAMING);
	CONSTANT(MW_HUGE_PAGES_NEVER);
	CONSTANT(MW_HUGE_PAGES_ADVISE);
	CONSTANT(MW_HUGE_PAGES_REQUIRE);
	CONSTANT(MW_NUMA_NONE);
	CONSTANT(MW_NUMA_LOCAL);
	CONSTANT(MW_SHAPE_FP32_OUTPUTS);
	CONSTANT(MW_SHAPE_FLAT);
	CONSTANT(MW_PHASE_SENT);
	CONSTANT(MW_PHASE_DONE);
	CONSTANT(MW_COMBINE_ZERO_COPY);
	CONSTANT(MW_COMBINE_FLAT);
}

int main(void)
{
	printf("{\"structs\": {\n  ");
	print_config(1);
	print_handles(0);
	print_counters(0);
	print_record(0);
	print_link(0);
	print_dispatch(0);
	print_combine(0);
	print_fabric(0);
	printf("},\n\"constants\": {\n  ");
	print_constants(1);
	print_fabric_constants(0);
	printf("}}\n");
	return 0;
}
