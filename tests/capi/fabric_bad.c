/*
 * Fabrics and bad input: NULLs, made-up ids, wrong sizes, invalid keys, requests outside
 * their regions. Each gives a status and a message that names what is wrong, writes
 * nothing, and leaves the fabric usable.
 */
#include <sys/stat.h>
#include <unistd.h>

#include "fabric.h"

/* The call is refused, and the message has these words. */
#define SAYS(want, words, call) \
	do { \
		REFUSED(want, call); \
		if (strstr(mw_last_error(), words) == NULL) \
			FAIL("%s does not say \"%s\"", #call, words); \
	} while (0)

#define INVALID(words, call) SAYS(MW_ERR_INVALID_ARGUMENT, words, call)

static void test_configs(void)
{
	static const char good[] = "1 00112233445566778899aabbccddeeff00112233445566778899aabbccddee01";
	mw_fabric_t f = {UNTOUCHED};
	mw_fabric_config_t c;
	INVALID("config is NULL", mw_fabric_create(NULL, &f));
	c = fabric_config(0);
	INVALID("fabric is NULL", mw_fabric_create(&c, NULL));
#define BAD(words, change) \
	do { \
		c = fabric_config(0); \
		change; \
		INVALID(words, mw_fabric_create(&c, &f)); \
		CHECK(f.id == UNTOUCHED); \
		CHECK(strstr(mw_last_error(), "0011223344556677") == NULL); \
	} while (0)
	BAD("config->size", c.size = 7);
	BAD("config->size", c.size = 5000);
	BAD("config->flags is 0x8, allowed bits 0x7", c.flags = 8);
	BAD("config->flags MW_FABRIC_RDMA_DC is given, allowed with MW_CARRIER_RDMA", c.flags = MW_FABRIC_RDMA_DC);
	BAD("config->carrier is 3", c.carrier = 3);
	BAD("config->tcp_zero_copy is 3", c.tcp_zero_copy = 3);
	BAD("config->eviction is 2", c.eviction = 2);
	BAD("config->rdma_gid is given, allowed with MW_CARRIER_RDMA", c.rdma_gid = TEXT("v2"));
	BAD("config->listen is given, allowed with MW_CARRIER_TCP", c.carrier = MW_CARRIER_RDMA);
	BAD("config->flags MW_FABRIC_ENCRYPT is given, allowed with MW_CARRIER_TCP",
	    (c.carrier = MW_CARRIER_RDMA, c.listen.num_bytes = 0, c.flags = MW_FABRIC_ENCRYPT));
	BAD("config->rdma_devices is \"a:0\" with the port \"0\", not 1 to 255, allowed are names of devices",
	    (c.carrier = MW_CARRIER_RDMA, c.listen.num_bytes = 0, c.rdma_devices = TEXT("a:0")));
	BAD("config->key_source is 0", c.key_source = 0);
	BAD("there is no mode without keys", c.key_source = 4);
	BAD("there is no key", c.keys.num_bytes = 0);
	BAD("config->keys is NULL", c.keys.address = 0);
	BAD("line 1: the key has 63 characters", c.keys = ((mw_bytes_t){ADDRESS(good), sizeof good - 2}));
	BAD("line 2: id 1 is there twice",
	    c.keys = TEXT("1 00112233445566778899aabbccddeeff00112233445566778899aabbccddee01;"
	                  "1 00112233445566778899aabbccddeeff00112233445566778899aabbccddee02"));
	BAD("more than 65536 bytes", (c.keys.num_bytes = 1 << 20, c.keys.address = ADDRESS(calloc(1, 1 << 20))));
	BAD("more than 65536 bytes", c.keys.num_bytes = UINT64_MAX); /* nothing there is read */
	BAD("no such file", (c.key_source = MW_KEYS_FILE, c.keys = TEXT("/nonexistent/keys")));
	BAD("environment variable NO_KEYS_HERE is not set", (c.key_source = MW_KEYS_ENV, c.keys = TEXT("NO_KEYS_HERE")));
	BAD("config->listen has \"localhost:1\"", c.listen = TEXT("localhost:1"));
	BAD("config->listen has \"\"", c.listen = TEXT("127.0.0.1:0,"));
	BAD("say where to listen", c.listen.num_bytes = 0);
	BAD("config->listen is NULL", c.listen.address = 0);
	BAD("config->listen has 65537 bytes", c.listen.num_bytes = 65537);
	BAD("advertise must say", c.listen = TEXT("0.0.0.0:0"));
	BAD("config->advertise has \"x\"", c.advertise = TEXT("x"));
	BAD("config->num_peers is 65537", c.num_peers = 65537);
	BAD("config->num_sockets is 17", c.num_sockets = 17);
	BAD("num_transfers is 65536, allowed 1 to 65535", c.num_transfers = 65536);
	BAD("send_depth is 5000", c.send_depth = 5000);
	BAD("config->slice_bytes is 9223372036854775808", c.slice_bytes = 1ull << 63);
	BAD("config->connect_timeout_us is -1", c.connect_timeout_us = -1);
}

static void test_keys_in_a_file(void)
{
	char path[] = "/tmp/moewire-fabric-keys-XXXXXX";
	int fd = mkstemp(path);
	CHECK(fd >= 0 && write(fd, test_keys, strlen(test_keys)) == (ssize_t)strlen(test_keys));
	CHECK(close(fd) == 0);
	mw_fabric_config_t c = fabric_config(0);
	mw_fabric_t f = {UNTOUCHED};
	c.key_source = MW_KEYS_FILE;
	c.keys = TEXT(path);
	CHECK(chmod(path, 0666) == 0);
	INVALID("may be written by others", mw_fabric_create(&c, &f));
	CHECK(chmod(path, 0600) == 0);
	f = open_fabric(&c);
	STATUS(MW_OK, mw_fabric_close(f, SOON));
	CHECK(unlink(path) == 0);
}

/* Every function with an invalid id. */
static void refuse_id(uint64_t id)
{
	mw_fabric_t f = {id};
	mw_region_t r = {id};
	mw_transfer_t t = {id}, out = {UNTOUCHED};
	mw_transfer_args_t a = transfer_args(MW_TRANSFER_RECEIVE_IMM, 1, (mw_region_t){0}, 0, 0, NULL);
	mw_transfer_result_t result = {.size = sizeof result, .imm = 77};
	mw_remote_t remote = {.size = sizeof remote, .key = 77};
	char handshake[MW_MAX_HANDSHAKE_BYTES];
	uint64_t n = UNTOUCHED, peer = UNTOUCHED;
	REFUSED(MW_ERR_HANDLE, mw_fabric_report(f, NULL, 0, &n));
	REFUSED(MW_ERR_HANDLE, mw_fabric_next_handshake(f, 0, &peer, handshake, sizeof handshake, &n));
	REFUSED(MW_ERR_HANDLE, mw_fabric_deliver(f, 1, handshake, 1));
	REFUSED(MW_ERR_HANDLE, mw_fabric_connect(f, 1, 0));
	REFUSED(MW_ERR_HANDLE, mw_fabric_disconnect(f, 1));
	REFUSED(MW_ERR_HANDLE, mw_fabric_close(f, 0));
	REFUSED(MW_ERR_HANDLE, mw_region_register(f, ADDRESS(handshake), 1, 0, &r));
	REFUSED(MW_ERR_HANDLE, mw_region_remote((mw_region_t){id}, &remote));
	REFUSED(MW_ERR_HANDLE, mw_region_close((mw_region_t){id}));
	REFUSED(MW_ERR_HANDLE, mw_transfer_post(f, &a, &out));
	REFUSED(MW_ERR_HANDLE, mw_transfer_wait(t, MW_UNTIL_ENDED, 0, &result));
	REFUSED(MW_ERR_HANDLE, mw_transfer_error(t, NULL, 0, &n));
	REFUSED(MW_ERR_HANDLE, mw_transfer_cancel(t));
	REFUSED(MW_ERR_HANDLE, mw_transfer_close(t));
	CHECK(n == UNTOUCHED && peer == UNTOUCHED && out.id == UNTOUCHED && r.id == id);
	CHECK(result.imm == 77 && remote.key == 77);
}

static void test_nulls(mw_fabric_t f, mw_region_t r)
{
	char handshake[MW_MAX_HANDSHAKE_BYTES];
	uint64_t n = UNTOUCHED, peer = UNTOUCHED;
	mw_transfer_t t = {UNTOUCHED};
	mw_transfer_args_t a = transfer_args(MW_TRANSFER_RECEIVE_IMM, 1, (mw_region_t){0}, 0, 0, NULL);
	INVALID("len is NULL", mw_fabric_report(f, NULL, 0, NULL));
	INVALID("peer is NULL", mw_fabric_next_handshake(f, 0, NULL, handshake, sizeof handshake, &n));
	INVALID("buf is NULL", mw_fabric_next_handshake(f, 0, &peer, NULL, sizeof handshake, &n));
	INVALID("len is NULL", mw_fabric_next_handshake(f, 0, &peer, handshake, sizeof handshake, NULL));
	INVALID("cap is 1023, needed 1024", mw_fabric_next_handshake(f, 0, &peer, handshake, 1023, &n));
	INVALID("timeout_us is -2", mw_fabric_next_handshake(f, -2, &peer, handshake, sizeof handshake, &n));
	INVALID("handshake is NULL", mw_fabric_deliver(f, 1, NULL, 1));
	INVALID("len is 1025", mw_fabric_deliver(f, 1, handshake, 1025));
	INVALID("region is NULL", mw_region_register(f, ADDRESS(handshake), 1, 0, NULL));
	INVALID("remote is NULL", mw_region_remote(r, NULL));
	INVALID("remote->size is 3", mw_region_remote(r, &(mw_remote_t){.size = 3}));
	INVALID("args is NULL", mw_transfer_post(f, NULL, &t));
	INVALID("transfer is NULL", mw_transfer_post(f, &a, NULL));
	INVALID("timeout_us is -2", mw_fabric_connect(f, 1, -2));
	CHECK(n == UNTOUCHED && peer == UNTOUCHED && t.id == UNTOUCHED);
}

static void test_requests(mw_fabric_t f, mw_region_t r, void *memory)
{
	mw_remote_t to = {.num_bytes = 100};
	mw_transfer_t t = {UNTOUCHED};
	mw_region_t other = {UNTOUCHED};
	mw_transfer_args_t a;
#undef BAD
#define BAD(want, words, change) \
	do { \
		a = transfer_args(MW_TRANSFER_WRITE, 1, r, 0, 64, &to); \
		change; \
		SAYS(want, words, mw_transfer_post(f, &a, &t)); \
		CHECK(t.id == UNTOUCHED); \
	} while (0)
	BAD(MW_ERR_INVALID_ARGUMENT, "args->kind is 0", a.kind = 0);
	BAD(MW_ERR_INVALID_ARGUMENT, "args->kind is 7", a.kind = 7);
	BAD(MW_ERR_INVALID_ARGUMENT, "args->reserved is 1", a.reserved = 1);
	BAD(MW_ERR_INVALID_ARGUMENT, "args->size", a.size = 4);
	BAD(MW_ERR_INVALID_ARGUMENT, "65 bytes at 0, the region has 64", a.num_bytes = 65);
	BAD(MW_ERR_INVALID_ARGUMENT, "64 bytes at 1, the region has 64", a.offset = 1);
	BAD(MW_ERR_INVALID_ARGUMENT, "args->offset is", a.offset = UINT64_MAX);
	BAD(MW_ERR_INVALID_ARGUMENT, "args->num_bytes is", a.num_bytes = 1ull << 63);
	BAD(MW_ERR_INVALID_ARGUMENT, "the region has 64", a.num_bytes = INT64_MAX);
	BAD(MW_ERR_INVALID_ARGUMENT, "64 bytes at 37 of the peer's region, which has 100", a.remote_offset = 37);
	BAD(MW_ERR_INVALID_ARGUMENT, "of the peer's region", a.remote_num_bytes = 0);
	BAD(MW_ERR_INVALID_ARGUMENT, "is not one of fabric", a.region.id ^= 2);
	BAD(MW_ERR_HANDLE, "no such region", a.region.id += 1 << 16);
	BAD(MW_ERR_NOT_SUPPORTED, "this one is for immediates", a.kind = MW_TRANSFER_SEND);
	BAD(MW_ERR_NOT_SUPPORTED, "this one is for immediates", a.kind = MW_TRANSFER_RECV);
	BAD(MW_ERR_INVALID_ARGUMENT, "receiving an immediate has none",
	    (a.kind = MW_TRANSFER_RECEIVE_IMM, a.num_bytes = 0));
	BAD(MW_ERR_CONNECTING, "connection is being made", (void)0);
	BAD(MW_ERR_CONNECTING, "connection is being made", (void)0); /* and again */
	BAD(MW_ERR_WOULD_BLOCK, "2 peers are known", (a.peer = 2, (void)mw_transfer_post(f, &a, &t), a.peer = 3));
	INVALID("num_bytes is 0", mw_region_register(f, ADDRESS(memory), 0, 0, &other));
	INVALID("num_bytes is", mw_region_register(f, ADDRESS(memory), UINT64_MAX, 0, &other));
	INVALID("address is NULL", mw_region_register(f, 0, 1, 0, &other));
	INVALID("access is 0x4,", mw_region_register(f, ADDRESS(memory), 1, 4, &other));
	SAYS(MW_ERR_WOULD_BLOCK, "1 regions, at most 1", mw_region_register(f, ADDRESS(memory), 1, 0, &other));
	CHECK(other.id == UNTOUCHED);
}

/* A genuine handshake of a fabric for messages. */
static void test_other_mode(mw_fabric_t f)
{
	char handshake[MW_MAX_HANDSHAKE_BYTES];
	uint64_t peer = UNTOUCHED, n = UNTOUCHED;
	mw_fabric_config_t c = fabric_config(MW_FABRIC_MESSAGES);
	mw_fabric_t other = open_fabric(&c);
	STATUS(MW_IN_PROGRESS, mw_fabric_connect(other, 1, 0));
	STATUS(MW_OK, mw_fabric_next_handshake(other, SOON, &peer, handshake, sizeof handshake, &n));
	SAYS(MW_ERR_PEER_MISMATCH, "for messages", mw_fabric_deliver(f, 1, handshake, n));
	STATUS(MW_OK, mw_fabric_close(other, SOON));
}

static void test_handshakes(mw_fabric_t f)
{
	char handshake[MW_MAX_HANDSHAKE_BYTES] = {0}, text[8192];
	uint64_t peer = UNTOUCHED, n = UNTOUCHED;
	STATUS(MW_IN_PROGRESS, mw_fabric_next_handshake(f, 0, &peer, handshake, sizeof handshake, &n));
	CHECK(peer == UNTOUCHED && n == UNTOUCHED);
	SAYS(MW_ERR_METADATA, "bad handshake", mw_fabric_deliver(f, 1, handshake, 0));
	SAYS(MW_ERR_METADATA, "bad handshake", mw_fabric_deliver(f, 1, handshake, sizeof handshake));
	STATUS(MW_IN_PROGRESS, mw_fabric_connect(f, 1, 0));
	STATUS(MW_OK, mw_fabric_next_handshake(f, SOON, &peer, handshake, sizeof handshake, &n));
	CHECK(peer == 1 && n > 5 && n <= sizeof handshake);
	SAYS(MW_ERR_METADATA, "bad handshake", mw_fabric_deliver(f, 1, handshake, n - 1));
	SAYS(MW_ERR_METADATA, "this fabric's own", mw_fabric_deliver(f, 1, handshake, n));
	handshake[n - 1] ^= 1;
	SAYS(MW_ERR_METADATA, "wrong tag", mw_fabric_deliver(f, 1, handshake, n));
	test_other_mode(f);
	STATUS(MW_OK, mw_fabric_disconnect(f, 1));
	STATUS(MW_OK, mw_fabric_disconnect(f, 12345));
	STATUS(MW_OK, mw_fabric_report(f, NULL, 0, &n));
	STATUS(MW_OK, mw_fabric_report(f, text, sizeof text, &n));
	text[n] = 0;
	CHECK(strstr(text, "\"carrier\":\"tcp\"") && strstr(text, "127.0.0.1:") && !strstr(text, "00112233"));
}

int main(void)
{
	static unsigned char memory[64];
	alarm(100);
	test_configs();
	test_keys_in_a_file();
	mw_fabric_config_t c = fabric_config(0);
	c.num_peers = 2;
	c.num_regions = 1;
	mw_fabric_t f = open_fabric(&c);
	refuse_id(0);
	refuse_id(f.id + 1);
	refuse_id(UINT64_MAX);
	mw_region_t r = register_memory(f, memory, sizeof memory);
	test_handshakes(f);
	test_nulls(f, r);
	test_requests(f, r, memory);
	STATUS(MW_OK, mw_region_close(r));
	STATUS(MW_OK, mw_fabric_close(f, SOON));
	refuse_id(f.id);
	printf("fabric_bad: ok\n");
	return 0;
}
