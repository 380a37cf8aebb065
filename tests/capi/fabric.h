/* Helpers of the tests of fabrics: a configuration, and transfers with a wait. */
#ifndef FABRIC_TEST_H
#define FABRIC_TEST_H

#include <stdatomic.h>
#include <stddef.h>

#include "check.h"
#include "moewire_fabric.h"

#define TEXT(s) ((mw_bytes_t){ADDRESS(s), strlen(s)})
#define SOON 20000000

static const char test_keys[] =
	"# of this test only\n1 00112233445566778899aabbccddeeff00112233445566778899aabbccddee01\n";

static inline mw_fabric_config_t fabric_config(uint32_t flags)
{
	mw_fabric_config_t c = {.size = sizeof c, .flags = flags, .key_source = MW_KEYS_BYTES};
	c.keys = TEXT(test_keys);
	c.listen = TEXT("127.0.0.1:0");
	return c;
}

static inline mw_fabric_t open_fabric(const mw_fabric_config_t *config)
{
	mw_fabric_t f = {0};
	STATUS(MW_OK, mw_fabric_create(config, &f));
	CHECK(f.id != 0);
	return f;
}

static inline mw_region_t register_memory(mw_fabric_t f, void *p, uint64_t bytes)
{
	mw_region_t r = {0};
	STATUS(MW_OK, mw_region_register(f, ADDRESS(p), bytes, MW_ACCESS_WRITE | MW_ACCESS_READ, &r));
	return r;
}

static inline mw_transfer_args_t transfer_args(uint32_t kind, uint64_t peer, mw_region_t region,
                                               uint64_t offset, uint64_t bytes, const mw_remote_t *to)
{
	mw_transfer_args_t a = {.size = sizeof a, .kind = kind, .peer = peer, .region = region,
	                        .offset = offset, .num_bytes = bytes};
	if (to) {
		a.remote_address = to->address;
		a.remote_num_bytes = to->num_bytes;
		a.remote_key = to->key;
	}
	return a;
}

/* Posts a transfer, even while a connection is being made again. */
static inline mw_transfer_t begin(mw_fabric_t f, const mw_transfer_args_t *a)
{
	mw_transfer_t t = {UNTOUCHED};
	mw_status_t status;
	for (;;) {
		status = mw_transfer_post(f, a, &t);
		if (status != MW_ERR_CONNECTING && status != MW_ERR_UNREACHABLE)
			break;
		CHECK(t.id == UNTOUCHED);
		(void)mw_fabric_connect(f, a->peer, 1000);
	}
	STATUS(MW_OK, status);
	return t;
}

/* Waits until a transfer is released, checks how it has ended, closes it. */
static inline mw_transfer_result_t finish(mw_transfer_t t, mw_status_t want)
{
	mw_transfer_result_t r = {.size = sizeof r};
	char text[256];
	uint64_t len = 0;
	STATUS(MW_OK, mw_transfer_wait(t, MW_UNTIL_RELEASED, SOON, &r));
	STATUS(MW_OK, mw_transfer_error(t, text, sizeof text, &len));
	if (r.status != want)
		FAIL("the transfer ended with %d (%.*s), want %d", r.status, (int)len, text, want);
	CHECK(r.released == 1 && (len > 0) == (want != MW_OK));
	STATUS(MW_OK, mw_transfer_close(t));
	REFUSED(MW_ERR_HANDLE, mw_transfer_close(t));
	return r;
}

#endif
