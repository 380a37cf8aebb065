/*
 * The calls of moewire_fabric.h that fuzz.c makes: on two fabrics of this process that
 * are each other's only peer. The program carries their handshakes.
 */
#ifndef FUZZ_FABRIC_H
#define FUZZ_FABRIC_H

#include "fabric.h"
#include "fuzz.h"

static mw_fabric_t fabric[2];
static struct ids fabrics, regions, transfers;
static unsigned char fabric_memory[4][4096];
static mw_remote_t remote_of[4];

/* Waits always have a bound, because the awaited event may never come. */
static int64_t short_time(void)
{
	return rarely(16) ? -2 - (int64_t)below(99) : (int64_t)below(500);
}

static void open_both(uint32_t flags)
{
	for (int i = 0; i < 2; i++) {
		mw_fabric_config_t c = fabric_config(flags);
		c.num_peers = 4;
		c.num_transfers = 64;
		c.slice_bytes = 512;
		fabric[i] = open_fabric(&c);
		remember(&fabrics, fabric[i].id);
	}
	for (int i = 0; i < 4; i++) {
		mw_region_t r = register_memory(fabric[i % 2], fabric_memory[i], sizeof fabric_memory[i]);
		remember(&regions, r.id);
		remote_of[i].size = sizeof remote_of[i];
		STATUS(MW_OK, mw_region_remote(r, &remote_of[i]));
	}
}

static void make_fabrics(void)
{
	open_both(0);
}

/* Closing gives all memory back, even with transfers in flight. */
static void close_fabrics(void)
{
	for (int i = 0; i < 2; i++)
		STATUS(MW_OK, mw_fabric_close(fabric[i], 20000000));
}

static mw_fabric_t some_fabric(void)
{
	return rarely(8) ? (mw_fabric_t){some_id(&fabrics)} : fabric[below(2)];
}

/* Carries one handshake to its peer, and alters it now and then. */
static mw_status_t carry_handshake(void)
{
	static unsigned char handshake[MW_MAX_HANDSHAKE_BYTES];
	uint64_t peer = UNTOUCHED, len = UNTOUCHED;
	int from = (int)below(2);
	mw_status_t status = mw_fabric_next_handshake(
		rarely(32) ? some_fabric() : fabric[from], short_time(), rarely(64) ? NULL : &peer,
		rarely(64) ? NULL : handshake, rarely(64) ? below(2000) % sizeof handshake : sizeof handshake, rarely(64) ? NULL : &len);
	CHECK(status == MW_OK || (peer == UNTOUCHED && len == UNTOUCHED));
	if (status != MW_OK)
		return status;
	if (rarely(8))
		handshake[below(len)] ^= (unsigned char)any64();
	return mw_fabric_deliver(fabric[1 - from], rarely(32) ? below(6) : (uint64_t)from,
	                         rarely(64) ? NULL : handshake, rarely(32) ? strange64() : len);
}

static mw_status_t call_fabric(void)
{
	char text[4096];
	uint64_t len = UNTOUCHED;
	int which = (int)below(2);
	switch (below(8)) {
	case 0: return mw_fabric_report(some_fabric(), rarely(4) ? NULL : text, rarely(4) ? below(4096) : 4096, rarely(32) ? NULL : &len);
	case 1: return rarely(8) ? mw_fabric_disconnect(some_fabric(), below(3)) : MW_OK;
	case 2:
		if (!rarely(64))
			return mw_fabric_close((mw_fabric_t){strange64() << 20}, short_time());
		close_fabrics();
		open_both(rarely(2) ? MW_FABRIC_MESSAGES : 0);
		return MW_OK;
	case 3: return mw_fabric_connect(fabric[which], (uint64_t)(1 - which), short_time());
	case 4: return mw_fabric_connect(some_fabric(), rarely(4) ? strange64() : below(3), short_time());
	default: return carry_handshake();
	}
}

static mw_status_t call_region(void)
{
	mw_region_t region = {UNTOUCHED};
	mw_remote_t remote = {.size = sizeof remote};
	switch (below(3)) {
	case 0: {
		uint64_t bytes = rarely(8) ? strange64() : 1 + below(4096);
		uint64_t at = memory((int)below(AREAS), bytes > INT64_MAX ? -1 : (int64_t)bytes, (int64_t)AREA_BYTES);
		mw_status_t status = mw_region_register(some_fabric(), at, bytes, rarely(8) ? (uint32_t)strange64() : (uint32_t)below(4),
		                                        rarely(32) ? NULL : &region);
		CHECK(status == MW_OK || region.id == UNTOUCHED);
		if (status == MW_OK)
			remember(&regions, region.id);
		return status;
	}
	case 1: {
		mutate(&remote, 8);
		void *out = rarely(32) ? NULL : exactly(&remote, sizeof remote);
		mw_status_t status = mw_region_remote((mw_region_t){some_id(&regions)}, out);
		free(out);
		return status;
	}
	default: return rarely(4) ? mw_region_close((mw_region_t){some_id(&regions)}) : MW_OK;
	}
}

static mw_status_t call_post(void)
{
	uint64_t i = below(2);
	mw_transfer_args_t a = transfer_args(1 + (uint32_t)below(6), 1 - i, (mw_region_t){some_id(&regions)}, below(512),
	                                     below(4096), &remote_of[below(4)]);
	if (a.kind == MW_TRANSFER_RECEIVE_IMM) {
		a.region.id = 0;
		a.offset = a.num_bytes = 0;
	}
	a.remote_offset = below(2048);
	mutate(&a, sizeof a);
	void *args = exactly(&a, sizeof a);
	mw_transfer_t t = {UNTOUCHED};
	mw_status_t status = mw_transfer_post(rarely(16) ? some_fabric() : fabric[i], rarely(64) ? NULL : args, rarely(64) ? NULL : &t);
	CHECK(status == MW_OK || t.id == UNTOUCHED);
	if (status == MW_OK) { /* forgotten transfers are closed, so there is room */
		(void)mw_transfer_close((mw_transfer_t){transfers.last[transfers.count % COUNT(transfers.last)]});
		remember(&transfers, t.id);
	}
	free(args);
	return status;
}

static mw_status_t call_transfer(void)
{
	mw_transfer_t t = {some_id(&transfers)};
	mw_transfer_result_t result = {.size = sizeof result};
	char text[256];
	uint64_t len = UNTOUCHED;
	switch (below(5)) {
	case 0: return mw_transfer_cancel(t);
	case 1: return mw_transfer_close(t);
	case 2: return mw_transfer_error(t, rarely(4) ? NULL : text, rarely(4) ? below(256) : 256, rarely(32) ? NULL : &len);
	default: {
		mutate(&result, 8);
		void *out = rarely(32) ? NULL : exactly(&result, sizeof result);
		mw_status_t status = mw_transfer_wait(t, rarely(8) ? (int32_t)strange64() : 1 + (int32_t)below(2), short_time(), out);
		free(out);
		return status;
	}
	}
}

/* The configuration is mostly wrong. If it is right, the fabric is closed again. */
static mw_status_t call_fabric_create(void)
{
	if (!rarely(16))
		return MW_OK;
	mw_fabric_config_t c = fabric_config((uint32_t)below(4));
	mw_bytes_t keys = c.keys, listen = c.listen;
	mutate(&c, sizeof c);
	c.num_peers %= 1000; /* memory grows with these bounds */
	c.num_connections %= 1000;
	c.num_regions %= 1000;
	c.num_unmatched %= 1000;
	c.interface_name = c.advertise = (mw_bytes_t){0, 0};
	c.keys = rarely(8) ? (mw_bytes_t){0, below(9)} : (mw_bytes_t){keys.address, below(keys.num_bytes + 1)};
	if (rarely(2))
		c.keys = keys;
	c.listen = rarely(8) ? (mw_bytes_t){0, below(9)} : listen;
	void *given = rarely(32) ? NULL : exactly(&c, sizeof c);
	mw_fabric_t f = {UNTOUCHED};
	mw_status_t status = mw_fabric_create(given, rarely(32) ? NULL : &f);
	CHECK(status == MW_OK || f.id == UNTOUCHED);
	free(given);
	if (status == MW_OK) {
		remember(&fabrics, f.id);
		STATUS(MW_OK, mw_fabric_close(f, 20000000));
	}
	return status;
}

#endif
