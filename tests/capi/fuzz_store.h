/*
 * The calls of moewire_store.h that fuzz.c makes: on a server of this process and a client of
 * it. Addresses are always the program's own; numbers around them are not.
 */
#ifndef FUZZ_STORE_H
#define FUZZ_STORE_H

#include "fuzz.h"
#include "fuzz_fabric.h" /* short_time */
#include "moewire_store.h"

enum { STORE_KEYS = 4, STORE_BYTES = 4096 };

static mw_store_server_t store_server;
static mw_store_t store_client;
static struct ids stores, store_servers, store_leases, store_requests;
static const char store_keys[] = "1 00112233445566778899aabbccddeeff00112233445566778899aabbccddee01";
static char store_address[64], store_names[STORE_KEYS][16];
static unsigned char store_blocks[STORE_KEYS][STORE_BYTES];
static mw_bytes_t store_key[STORE_KEYS], store_piece[STORE_KEYS];

static mw_store_server_config_t store_server_config(void)
{
	return (mw_store_server_config_t){
		.size = sizeof(mw_store_server_config_t), .key_source = MW_KEYS_BYTES,
		.keys = {ADDRESS(store_keys), sizeof store_keys - 1}, .listen = {ADDRESS("127.0.0.1:0"), 11},
		.storage = MW_STORAGE_MEMORY, .capacity_bytes = 8 << 20};
}

static mw_store_config_t store_client_config(void)
{
	return (mw_store_config_t){
		.size = sizeof(mw_store_config_t), .key_source = MW_KEYS_BYTES,
		.keys = {ADDRESS(store_keys), sizeof store_keys - 1},
		.servers = {ADDRESS(store_address), strlen(store_address)}, .model = {ADDRESS("model"), 5}};
}

static void make_store(void)
{
	mw_store_server_config_t c = store_server_config();
	uint64_t len = 0;
	STATUS(MW_OK, mw_store_serve(&c, &store_server));
	STATUS(MW_OK, mw_store_server_address(store_server, store_address, sizeof store_address - 1, &len));
	remember(&store_servers, store_server.id);
	mw_store_config_t client = store_client_config();
	STATUS(MW_OK, mw_store_open(&client, &store_client));
	remember(&stores, store_client.id);
	for (int i = 0; i < STORE_KEYS; i++) {
		snprintf(store_names[i], sizeof store_names[i], "key%d", i);
		store_key[i] = (mw_bytes_t){ADDRESS(store_names[i]), 4};
		store_piece[i] = (mw_bytes_t){ADDRESS(store_blocks[i]), STORE_BYTES};
	}
}

static void close_store(void)
{
	STATUS(MW_OK, mw_store_close(store_client));
	STATUS(MW_OK, mw_store_server_close(store_server, 5000000));
}

static mw_store_t some_store(void)
{
	return rarely(16) ? (mw_store_t){some_id(&stores)} : store_client;
}

/* Of a few keys, with numbers that are right or strange; never more pieces than there are. */
static mw_store_request_t store_request(void)
{
	static uint32_t one_each[STORE_KEYS] = {1, 1, 1, 1};
	uint32_t n = rarely(16) ? 513 + (uint32_t)below(1u << 30) : 1 + (uint32_t)below(STORE_KEYS);
	mw_store_request_t r = {.size = sizeof r, .op = rarely(16) ? (uint32_t)strange64() : 32 + (uint32_t)below(6), .num_keys = n};
	r.num_pieces = rarely(16) ? 0 : n;
	r.keys = rarely(64) ? 0 : ADDRESS(store_key);
	r.pieces = rarely(64) ? 0 : ADDRESS(store_piece);
	r.pieces_per_key = rarely(4) && n <= STORE_KEYS ? ADDRESS(one_each) : 0;
	r.timeout_us = rarely(16) ? -1 - (int64_t)below(9) : 1 + (int64_t)below(2000000);
	r.key_bytes = rarely(16) ? (uint32_t)(n <= STORE_KEYS ? below(17) : below(1u << 30)) : 0; /* the table is of 16 for each */
	r.hold_us = rarely(4) ? (int64_t)strange64() : (int64_t)below(1000);
	if (rarely(64))
		r.size = (uint32_t)below(2 * sizeof r);
	if (r.op != MW_STORE_PUT && r.op != MW_STORE_GET && !rarely(16))
		r.num_pieces = 0, r.pieces = 0, r.pieces_per_key = 0;
	return r;
}

static mw_status_t call_store_request(void)
{
	uint8_t ok[512];
	int64_t lengths[512];
	uint64_t leases[512] = {UNTOUCHED}, id = UNTOUCHED;
	mw_store_completion_t done = {.size = sizeof done};
	mw_store_request_t r = store_request();
	void *given = rarely(64) ? NULL : exactly(&r, sizeof r);
	mw_status_t status;
	switch (below(5)) {
	case 0:
		status = mw_store_submit(some_store(), given, rarely(64) ? NULL : &id);
		CHECK(status == MW_OK || id == UNTOUCHED);
		if (status == MW_OK)
			remember(&store_requests, id);
		break;
	case 1:
		status = mw_store_lookup(some_store(), given, rarely(64) ? NULL : leases, rarely(8) ? NULL : lengths);
		if (status == MW_OK)
			remember(&store_leases, leases[0]);
		break;
	case 2: status = mw_store_drain(some_store(), rarely(64) ? NULL : &done, ok, lengths); break;
	case 3:
		status = mw_store_wait(some_store(), some_id(&store_requests), short_time(), &done, ok, lengths);
		break;
	default: status = mw_store_do(some_store(), given, rarely(64) ? NULL : ok, rarely(64) ? NULL : lengths);
	}
	free(given);
	return status;
}

static mw_status_t call_store_place(mw_store_lease_t lease)
{
	mw_store_place_t place = {.size = sizeof place, .fd = -1};
	mw_status_t status = mw_store_lease_place(lease, rarely(64) ? NULL : &place);
	CHECK((place.fd >= 0) == (status == MW_OK));
	if (place.fd >= 0)
		CHECK(close(place.fd) == 0);
	return status;
}

/* A timeout of a call: mostly right. */
static int64_t store_time(void)
{
	return rarely(16) ? (int64_t)strange64() : (int64_t)below(2000000);
}

static mw_status_t call_store_other(void)
{
	static char text[MW_STORE_LIST_BYTES];
	uint64_t len = UNTOUCHED, cap = rarely(4) ? below(sizeof text) : sizeof text;
	mw_store_lease_t lease = {some_id(&store_leases)};
	mw_bytes_t prefix = {ADDRESS("key"), below(4)}, none = {0, 0};
	int32_t fd;
	uint8_t ok;
	switch (below(10)) {
	case 7: return call_store_place(lease);
	case 8: return mw_store_lease_end(lease, rarely(64) ? NULL : &ok);
	case 9: return mw_store_warnings(some_store(), rarely(64) ? NULL : text, cap, rarely(64) ? NULL : &len);
	case 0: return mw_store_event_fd(some_store(), rarely(64) ? NULL : &fd);
	case 1: return mw_store_lease_read(lease, ADDRESS(store_blocks[0]), rarely(4) ? below(STORE_BYTES) : STORE_BYTES, &ok);
	case 2: return mw_store_lease_close(lease);
	case 3: return mw_store_list(some_store(), rarely(16) ? NULL : &prefix, rarely(16) ? NULL : &none, store_time(),
	                             rarely(64) ? NULL : text, cap, &len);
	case 4: return mw_store_flush(some_store(), rarely(8) ? -1 : 1 + (int64_t)below(2000000));
	case 5: return rarely(16) ? mw_store_close((mw_store_t){strange64() << 20}) : MW_OK;
	default: return mw_store_stats(some_store(), store_time(), rarely(64) ? NULL : text, cap, rarely(64) ? NULL : &len);
	}
}

/* A copy of a struct with zeros behind it: its size may say more than it has. */
static void *roomy(const void *from, size_t n)
{
	static unsigned char room[1 << 16];
	memset(room, 0, sizeof room);
	return memcpy(room, from, n);
}

/* The configurations are mostly wrong. If one is right, what it made is closed again. */
static mw_status_t call_store_make(void)
{
	if (!rarely(16))
		return MW_OK;
	mw_store_server_t server = {UNTOUCHED};
	mw_store_t client = {UNTOUCHED};
	if (rarely(2)) {
		mw_store_server_config_t c = store_server_config();
		uint32_t *numbers[] = {&c.size, &c.key_source, &c.storage, &c.durability, &c.protection, &c.num_clients};
		*numbers[below(COUNT(numbers))] = (uint32_t)strange64();
		if (c.storage == MW_STORAGE_FILE)
			c.storage = 0;
		c.keys.num_bytes = below(c.keys.num_bytes + 1);
		mw_status_t status = mw_store_serve(rarely(32) ? NULL : roomy(&c, sizeof c), rarely(32) ? NULL : &server);
		CHECK(status == MW_OK || server.id == UNTOUCHED);
		if (status == MW_OK)
			STATUS(MW_OK, mw_store_server_close(server, 5000000));
		return status;
	}
	mw_store_config_t c = store_client_config();
	uint32_t *numbers[] = {&c.size, &c.key_source, &c.num_requests, &c.protection, &c.transport};
	*numbers[below(COUNT(numbers))] = (uint32_t)strange64();
	c.keys.num_bytes = below(c.keys.num_bytes + 1);
	mw_status_t status = mw_store_open(rarely(32) ? NULL : roomy(&c, sizeof c), rarely(32) ? NULL : &client);
	CHECK(status == MW_OK || client.id == UNTOUCHED);
	if (status == MW_OK)
		STATUS(MW_OK, mw_store_close(client));
	return status;
}

static mw_status_t call_store_server(void)
{
	char text[65536];
	uint64_t len = UNTOUCHED, cap = rarely(4) ? below(sizeof text) : sizeof text;
	mw_store_server_t s = rarely(16) ? (mw_store_server_t){some_id(&store_servers)} : store_server;
	void *buf = rarely(64) ? NULL : text;
	switch (below(7)) {
	case 5: return mw_store_server_metrics(s, buf, cap, rarely(64) ? NULL : &len);
	case 0: return mw_store_server_address(s, buf, cap, &len);
	case 1: return mw_store_server_stats(s, buf, cap, rarely(64) ? NULL : &len);
	case 2: return mw_store_server_log(s, buf, cap, &len);
	case 3: return mw_store_server_reload(s);
	case 4: return rarely(16) ? mw_store_server_drain((mw_store_server_t){strange64() << 20}, short_time()) : MW_OK;
	default: return rarely(16) ? mw_store_server_close((mw_store_server_t){strange64() << 20}, short_time()) : MW_OK;
	}
}

static mw_status_t call_store(void)
{
	switch (below(8)) {
	case 0: return call_store_make();
	case 1: return call_store_server();
	case 2:
	case 3: return call_store_other();
	default: return call_store_request();
	}
}

#endif
