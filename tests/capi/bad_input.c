/*
 * Nulls, made-up and closed ids, wrong sizes, altered metadata: each gives a
 * status and a message, writes no output, and leaves the library usable.
 */
#include <stddef.h>

#include "check.h"

static void test_versions(void)
{
	CHECK(mw_abi_version() == MW_ABI_VERSION);
	CHECK(mw_version() && strlen(mw_version()) > 0);
	CHECK(mw_last_error() && mw_last_error()[0] == 0);
}

static void test_report(void)
{
	uint64_t len = 0;
	STATUS(MW_OK, mw_system_report(NULL, 0, &len));
	CHECK(len > 0);
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_system_report(NULL, 0, NULL));
	char *text = malloc(len); /* exactly this size: the sanitizer sees one byte too many */
	uint64_t again = 0;
	STATUS(MW_OK, mw_system_report(text, len, &again));
	CHECK(again == len && text[0] == '{' && text[len - 1] == '}');
	again = 0;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_system_report(text, len - 1, &again));
	CHECK(again == len);
	free(text);
}

static void test_cuda_report(void)
{
	static const char path[] = "/there/is/no/driver.so";
	mw_bytes_t driver = {(uint64_t)(uintptr_t)path, sizeof path - 1};
	mw_bytes_t nowhere = {0, 8}, long_one = {(uint64_t)(uintptr_t)path, 1 << 20};
	uint64_t len = UNTOUCHED;
	REFUSED(MW_ERR_NO_DEVICE, mw_cuda_report(&driver, NULL, NULL, 0, &len));
	CHECK(strstr(mw_last_error(), path) && len == UNTOUCHED);
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_cuda_report(&nowhere, NULL, NULL, 0, &len));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_cuda_report(&long_one, NULL, NULL, 0, &len));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_cuda_report(&driver, &nowhere, NULL, 0, &len));
	CHECK(strstr(mw_last_error(), "nvrtc"));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_cuda_report(&driver, NULL, NULL, 0, NULL));
}

static void test_cuda_config(void)
{
	static const char path[] = "/there/is/no/driver.so";
	mw_config_t config = config_of(0, 1);
	mw_buffer_t buffer = {UNTOUCHED};
	config.device_ordinal = 1;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_create(&config, &buffer));
	config.device = 2;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_create(&config, &buffer));
	config.device = MW_DEVICE_CUDA;
	config.num_bytes = 0;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_create(&config, &buffer));
	CHECK(strstr(mw_last_error(), "num_bytes"));
	config.num_bytes = 8 << 20;
	config.cuda_code.num_bytes = 8;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_create(&config, &buffer));
	config.cuda_code.num_bytes = 0;
	config.cuda_driver.address = (uint64_t)(uintptr_t)path;
	config.cuda_driver.num_bytes = sizeof path - 1;
	REFUSED(MW_ERR_NO_DEVICE, mw_buffer_create(&config, &buffer));
	CHECK(strstr(mw_last_error(), path) && buffer.id == UNTOUCHED);
}

static void test_nulls(void)
{
	mw_config_t config = config_of(0, 1);
	mw_shape_t shape = {.size = sizeof shape, .num_max_tokens_per_rank = 4, .hidden = 128,
	                    .num_ranks = 1, .num_experts = 2};
	mw_buffer_t buffer = {UNTOUCHED};
	uint64_t n = UNTOUCHED;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_size_hint(NULL, &n));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_size_hint(&shape, NULL));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_create(NULL, &buffer));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_create(&config, NULL));
	CHECK(buffer.id == UNTOUCHED && n == UNTOUCHED);
	STATUS(MW_OK, mw_buffer_size_hint(&shape, &n));
	CHECK(n != UNTOUCHED && n > 0);

	buffer = lone_buffer();
	mw_op_t op = {UNTOUCHED};
	mw_dispatch_args_t dispatch = {.size = sizeof dispatch};
	mw_combine_args_t combine = {.size = sizeof combine};
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_metadata(buffer, &n, 8, NULL));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_counters(buffer, NULL));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_dispatch(buffer, NULL, &op));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_dispatch(buffer, &dispatch, NULL));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_dispatch(buffer, &dispatch, &op));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_combine(buffer, NULL, &op));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_combine(buffer, &combine, NULL));
	CHECK(mw_buffer_combine(buffer, &combine, &op) < 0);
	CHECK(op.id == UNTOUCHED);
	CHECK(mw_buffer_combine_buffer(buffer, (mw_handle_t){0}, 0, NULL) < 0);
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_combine_buffer_on(buffer, (mw_handle_t){0}, 0, NULL));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_combine_buffer_on(buffer, (mw_handle_t){0}, 0, &n));
	CHECK(strstr(mw_last_error(), "on the CPU"));
	STATUS(MW_OK, mw_buffer_close(buffer));

	STATUS(MW_OK, mw_buffer_create(&config, &buffer));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_connect(buffer, NULL, 1, 1000));
	STATUS(MW_OK, mw_buffer_close(buffer));
}

/* Every function with an invalid id. */
static void refuse_id(uint64_t id)
{
	static const mw_bytes_t all[1];
	mw_buffer_t buffer = {id};
	mw_handle_t handle = {id};
	mw_op_t op = {id};
	mw_memory_t memory = {id};
	mw_op_t out = {UNTOUCHED};
	mw_counters_t counters = {.size = sizeof counters};
	mw_dispatch_result_t result = {.size = sizeof result};
	mw_dispatch_args_t dispatch = {.size = sizeof dispatch, .result = &result};
	mw_combine_args_t combine = {.size = sizeof combine, .handle = handle};
	uint64_t n = UNTOUCHED;
	REFUSED(MW_ERR_HANDLE, mw_buffer_metadata(buffer, NULL, 0, &n));
	REFUSED(MW_ERR_HANDLE, mw_buffer_connect(buffer, all, 1, 1000));
	REFUSED(MW_ERR_HANDLE, mw_buffer_counters(buffer, &counters));
	mw_record_t record = {.size = sizeof record};
	uint32_t count = 77;
	REFUSED(MW_ERR_HANDLE, mw_buffer_stats(buffer, NULL, 0, &n));
	REFUSED(MW_ERR_HANDLE, mw_buffer_events(buffer, 0, NULL, 0, &n));
	mw_link_t link = {.size = sizeof link};
	REFUSED(MW_ERR_HANDLE, mw_buffer_trace(buffer, 0, &record, 1, &count));
	REFUSED(MW_ERR_HANDLE, mw_buffer_links(buffer, &link, 1, &count));
	CHECK(count == 77);
	REFUSED(MW_ERR_HANDLE, mw_buffer_dispatch(buffer, &dispatch, &out));
	REFUSED(MW_ERR_HANDLE, mw_buffer_combine(buffer, &combine, &out));
	REFUSED(MW_ERR_HANDLE, mw_buffer_combine_buffer(buffer, handle, 0, &n));
	REFUSED(MW_ERR_HANDLE, mw_buffer_combine_buffer_on(buffer, handle, 0, &n));
	REFUSED(MW_ERR_HANDLE, mw_buffer_close(buffer));
	REFUSED(MW_ERR_HANDLE, mw_handle_release(handle));
	REFUSED(MW_ERR_HANDLE, mw_op_wait(op, MW_PHASE_DONE, 0));
	REFUSED(MW_ERR_HANDLE, mw_op_test(op));
	REFUSED(MW_ERR_HANDLE, mw_op_cancel(op));
	REFUSED(MW_ERR_HANDLE, mw_op_close(op));
	REFUSED(MW_ERR_HANDLE, mw_memory_retain(memory));
	REFUSED(MW_ERR_HANDLE, mw_memory_release(memory));
	CHECK(out.id == UNTOUCHED && n == UNTOUCHED);
}

static void test_observation(void)
{
	mw_buffer_t buffer = lone_buffer();
	mw_record_t records[2] = {{.size = sizeof records[0], .sequence = 77}};
	uint32_t count = 77;
	uint64_t len = UNTOUCHED;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_trace(buffer, 1, records, 2, &count));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_trace(buffer, UINT32_MAX, records, 2, &count));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_trace(buffer, 0, records, 0, &count));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_trace(buffer, 0, records, 2, NULL));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_trace(buffer, 0, NULL, 2, &count));
	records[0].size = 7;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_trace(buffer, 0, records, 2, &count));
	records[0].size = sizeof records[0];
	CHECK(count == 77);
	STATUS(MW_OK, mw_buffer_trace(buffer, 0, records, 2, &count));
	CHECK(count == 0 && records[0].sequence == 77); /* nothing has ended */

	mw_link_t links[2] = {{.size = sizeof links[0], .rank = 77}};
	count = 77;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_links(buffer, links, 0, &count));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_links(buffer, links, 2, NULL));
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_links(buffer, NULL, 2, &count));
	links[0].size = 7;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_links(buffer, links, 2, &count));
	links[0].size = sizeof links[0];
	CHECK(count == 77);
	STATUS(MW_OK, mw_buffer_links(buffer, links, 2, &count));
	CHECK(count == 0 && links[0].rank == 77); /* no rank is remote */

	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_stats(buffer, NULL, 0, NULL));
	STATUS(MW_OK, mw_buffer_stats(buffer, NULL, 0, &len));
	char *text = malloc(2 * len);
	uint64_t written = 0;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_stats(buffer, text, 8, &written));
	STATUS(MW_OK, mw_buffer_stats(buffer, text, 2 * len, &written));
	CHECK(written <= 2 * len && text[0] == '{' && text[written - 1] == '}');
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_events(buffer, 0, NULL, 0, NULL));
	STATUS(MW_OK, mw_buffer_events(buffer, UINT64_MAX, text, 2 * len, &written));
	CHECK(text[0] == '{' && text[written - 1] == '}');
	free(text);
	CHECK(mw_event_count() != NULL && *mw_event_count() == 0);
	STATUS(MW_OK, mw_buffer_close(buffer));
	CHECK(mw_event_count() != NULL && *mw_event_count() == 0);
}

static void test_made_up_ids(void)
{
	mw_buffer_t live = lone_buffer();
	uint64_t state = 42;
	refuse_id(0);
	refuse_id(UINT64_MAX);
	for (int i = 0; i < 64; i++)
		if ((uint64_t)1 << i != live.id)
			refuse_id((uint64_t)1 << i);
	for (int i = 0; i < 2000; i++) {
		uint64_t id = next_random(&state);
		if (id != live.id)
			refuse_id(id);
	}
	/* An id of one kind is invalid for another kind. */
	REFUSED(MW_ERR_HANDLE, mw_op_close((mw_op_t){live.id}));
	REFUSED(MW_ERR_HANDLE, mw_handle_release((mw_handle_t){live.id}));
	REFUSED(MW_ERR_HANDLE, mw_memory_release((mw_memory_t){live.id}));
	STATUS(MW_OK, mw_buffer_close(live));
	refuse_id(live.id);
}

/* A struct as a later header might have it: today's fields, then unknown fields. */
typedef struct {
	mw_config_t known;
	uint64_t later[4];
} later_config_t;

static void test_sizes(void)
{
	mw_buffer_t buffer = {UNTOUCHED};
	later_config_t later = {.known = config_of(0, 1)};
	mw_config_t *config = &later.known;
	for (uint32_t size = 0; size < 4; size++) {
		config->size = size;
		REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_create(config, &buffer));
	}
	for (uint32_t size = 9; size < sizeof *config; size += size % 8 == 7 ? 2 : 1) {
		config->size = size; /* the size may end inside a field */
		REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_create(config, &buffer));
	}
	config->size = sizeof later;
	later.later[3] = 1;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_create(config, &buffer));
	CHECK(buffer.id == UNTOUCHED);
	later.later[3] = 0;
	STATUS(MW_OK, mw_buffer_create(config, &buffer));
	STATUS(MW_OK, mw_buffer_close(buffer));
	/* A caller that knows fewer fields gets the defaults of the others. */
	config->size = offsetof(mw_config_t, num_bytes);
	config->num_slots = 1u << 30;
	STATUS(MW_OK, mw_buffer_create(config, &buffer));
	STATUS(MW_OK, mw_buffer_close(buffer));
	config->size = sizeof *config;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_create(config, &buffer));

	/* Counters: the library writes only the fields for which the caller has room. */
	buffer = lone_buffer();
	mw_counters_t counters;
	memset(&counters, 0xee, sizeof counters);
	counters.size = offsetof(mw_counters_t, num_combines);
	STATUS(MW_OK, mw_buffer_counters(buffer, &counters));
	CHECK(counters.num_dispatches == 0 && counters.num_combines == 0xeeeeeeeeeeeeeeeeull);
	counters.size = 2;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_counters(buffer, &counters));
	STATUS(MW_OK, mw_buffer_close(buffer));
}

static void test_configs(void)
{
	mw_buffer_t buffer = {UNTOUCHED};
	mw_config_t bad[] = {
		{.rank = 0, .num_ranks = 0},
		{.rank = 1, .num_ranks = 1},
		{.rank = UINT32_MAX, .num_ranks = 2},
		{.rank = 0, .num_ranks = MW_MAX_RANKS + 1},
		{.rank = 0, .num_ranks = UINT32_MAX},
		{.rank = 0, .num_ranks = 1, .flags = 0x40},
		{.rank = 0, .num_ranks = 1, .flags = MW_CONFIG_KILL_FENCED}, /* not allowed on the CPU */
		{.rank = 0, .num_ranks = 1, .num_slots = 65},
		{.rank = 0, .num_ranks = 1, .vector_width = 7},
		{.rank = 0, .num_ranks = 1, .vector_width = -2},
		{.rank = 0, .num_ranks = 1, .stores = 3},
		{.rank = 0, .num_ranks = 1, .vector_width = -1, .stores = MW_STORES_STREAMING},
		{.rank = 0, .num_ranks = 1, .vector_width = -1, .prefetch = 1},
		{.rank = 0, .num_ranks = 1, .vector_width = -1, .num_threads = 2},
		{.rank = 0, .num_ranks = 1, .huge_pages = 3},
		{.rank = 0, .num_ranks = 1, .numa = 2},
		{.rank = 0, .num_ranks = 1, .num_threads = 65},
		{.rank = 0, .num_ranks = 1, .prefetch = -2},
		{.rank = 0, .num_ranks = 1, .prefetch = 65},
		{.rank = 0, .num_ranks = 1, .spin_us = -2},
		{.rank = 0, .num_ranks = 1, .spin_us = 1000001},
		{.rank = 0, .num_ranks = 1, .slow_after_us = -2},
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		bad[i].size = sizeof *bad;
		if (mw_buffer_create(&bad[i], &buffer) != MW_ERR_INVALID_ARGUMENT)
			FAIL("configuration %zu was not refused", i);
	}
	CHECK(buffer.id == UNTOUCHED);
}

/* A caller that does not know the choices of later versions gets the defaults. */
static void test_old_config(void)
{
	mw_config_t config = config_of(0, 1);
	mw_buffer_t buffer;
	config.size = offsetof(mw_config_t, stores);
	config.stores = 77;
	config.spin_us = -77;
	STATUS(MW_OK, mw_buffer_create(&config, &buffer));
	STATUS(MW_OK, mw_buffer_close(buffer));
}

/* Fields that came later are refused if they are unknown, and are absent from an older
   caller's struct. */
static void test_shape_flags(void)
{
	uint64_t narrow = 0, larger = 0, n = UNTOUCHED;
	mw_shape_t s = {.size = offsetof(mw_shape_t, flags), .num_max_tokens_per_rank = 64,
	                .hidden = 7168, .num_ranks = 1, .num_experts = 8, .flags = 0x100};
	STATUS(MW_OK, mw_buffer_size_hint(&s, &narrow));
	s.size = sizeof s;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_size_hint(&s, &n));
	s.flags = MW_SHAPE_FP32_OUTPUTS, s.reserved = 1;
	REFUSED(MW_ERR_INVALID_ARGUMENT, mw_buffer_size_hint(&s, &n));
	s.reserved = 0;
	STATUS(MW_OK, mw_buffer_size_hint(&s, &larger));
	CHECK(n == UNTOUCHED && larger > narrow);
}

static void test_shapes(void)
{
	uint64_t n = UNTOUCHED;
#define SHAPE(slots, m, h, r, e) \
	{.num_slots = slots, .num_max_tokens_per_rank = m, .hidden = h, .num_ranks = r, .num_experts = e}
	mw_shape_t bad[] = {
		SHAPE(0, -1, 128, 1, 2), SHAPE(0, 4, 0, 1, 2),
		SHAPE(0, 4, 12, 1, 2), SHAPE(0, 4, 128, 0, 2),
		SHAPE(0, 4, 128, 3, 4), SHAPE(0, 4, 128, 1, -2),
		SHAPE(65, 4, 128, 1, 2), SHAPE(0, INT64_MAX, 128, 1, 2),
		SHAPE(0, 4, INT64_MAX - 7, 1, 2), SHAPE(0, 4, 128, 1, INT64_MAX),
		SHAPE(0, 1ll << 40, 1ll << 20, 1, 1ll << 10),
	};
#undef SHAPE
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		bad[i].size = sizeof *bad;
		if (mw_buffer_size_hint(&bad[i], &n) != MW_ERR_INVALID_ARGUMENT)
			FAIL("shape %zu was not refused", i);
	}
	CHECK(n == UNTOUCHED);
	test_shape_flags();
}

/* Connects rank 0 of two with the given bytes as rank 1's. */
static mw_status_t connect_with(const void *bytes, uint64_t len)
{
	unsigned char own[1024];
	uint64_t own_len = 0;
	mw_config_t config = config_of(0, 2);
	mw_buffer_t buffer = {0};
	STATUS(MW_OK, mw_buffer_create(&config, &buffer));
	STATUS(MW_OK, mw_buffer_metadata(buffer, own, sizeof own, &own_len));
	mw_bytes_t all[2] = {{ADDRESS(own), own_len}, {ADDRESS(bytes), len}};
	mw_status_t status = mw_buffer_connect(buffer, all, 2, 2000000);
	if (status < 0)
		CHECK(mw_last_error()[0] != 0);
	STATUS(MW_OK, mw_buffer_close(buffer));
	return status;
}

static void test_metadata(void)
{
	mw_config_t config = config_of(1, 2);
	mw_buffer_t buffer = {0};
	uint64_t len = 0, again = 0;
	STATUS(MW_OK, mw_buffer_create(&config, &buffer));
	STATUS(MW_OK, mw_buffer_metadata(buffer, NULL, 0, &len));
	CHECK(len > 0 && len <= 1024);
	unsigned char *bytes = malloc(len);
	STATUS(MW_OK, mw_buffer_metadata(buffer, bytes, len, &again));
	CHECK(again == len);
	for (uint64_t cut = 1; cut < len; cut++) {
		unsigned char *part = malloc(cut);
		(void)mw_buffer_metadata(buffer, part, cut, &again);
		memcpy(part, bytes, cut);
		STATUS(MW_ERR_METADATA, connect_with(part, cut));
		free(part);
	}
	for (uint64_t i = 0; i < len; i++) {
		bytes[i] ^= (unsigned char)(1u << i % 8);
		mw_status_t status = connect_with(bytes, len);
		if (status != MW_ERR_METADATA && status != MW_ERR_PEER_MISMATCH)
			FAIL("metadata with byte %" PRIu64 " altered gave %d", i, status);
		bytes[i] ^= (unsigned char)(1u << i % 8);
	}
	STATUS(MW_OK, connect_with(NULL, 0)); /* rank 1 is absent */
	free(bytes);
	STATUS(MW_OK, mw_buffer_close(buffer));
}

int main(void)
{
	test_versions();
	test_report();
	test_cuda_report();
	test_cuda_config();
	test_nulls();
	test_configs();
	test_old_config();
	test_shapes();
	test_sizes();
	test_observation();
	test_made_up_ids();
	test_metadata();
	puts("bad_input: ok");
	return 0;
}
