/*
 * The block store from C: a server and a client in one process, every call, and bad input.
 * A refused call gives a status and a message that names what is wrong, and writes nothing.
 */
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "moewire_store.h"

#define TEXT(literal) ((mw_bytes_t){ADDRESS(literal), sizeof(literal) - 1})

/* The call is refused, and the message has these words. */
#define SAYS(want, words, call) \
	do { \
		REFUSED(want, call); \
		if (strstr(mw_last_error(), words) == NULL) \
			FAIL("%s does not say \"%s\"", #call, words); \
	} while (0)

#define INVALID(words, call) SAYS(MW_ERR_INVALID_ARGUMENT, words, call)

static const char keys_text[] = "1 00112233445566778899aabbccddeeff00112233445566778899aabbccddee01";
static char address[64];

static mw_store_server_config_t server_config(void)
{
	mw_store_server_config_t c = {.size = sizeof c, .key_source = MW_KEYS_BYTES, .keys = TEXT(keys_text)};
	c.listen = TEXT("127.0.0.1:0");
	c.storage = MW_STORAGE_MEMORY;
	c.capacity_bytes = 64 << 20;
	return c;
}

static mw_store_config_t client_config(void)
{
	mw_store_config_t c = {.size = sizeof c, .key_source = MW_KEYS_BYTES, .keys = TEXT(keys_text)};
	c.servers = (mw_bytes_t){ADDRESS(address), strlen(address)};
	c.model = TEXT("model");
	c.timeout_us = 5000000;
	return c;
}

static mw_store_server_t serve(void)
{
	mw_store_server_config_t c = server_config();
	mw_store_server_t s = {0};
	uint64_t len = 0;
	STATUS(MW_OK, mw_store_serve(&c, &s));
	STATUS(MW_OK, mw_store_server_address(s, address, sizeof address - 1, &len));
	address[len] = 0;
	return s;
}

static mw_store_request_t request(uint32_t op, const mw_bytes_t *keys, uint32_t num_keys, const mw_bytes_t *pieces)
{
	mw_store_request_t r = {.size = sizeof r, .op = op, .num_keys = num_keys, .keys = ADDRESS(keys)};
	if (pieces != NULL) {
		r.num_pieces = num_keys;
		r.pieces = ADDRESS(pieces);
	}
	return r;
}

static mw_bytes_t three[3];

static void test_put_and_get(mw_store_t s)
{
	uint8_t ok[3];
	int64_t lengths[3];
	char into[3][8] = {"", "", ""};
	mw_bytes_t data[] = {TEXT("first"), TEXT("sec"), TEXT("ond")};
	uint32_t counts[] = {1, 2};
	mw_store_request_t r = request(MW_STORE_PUT, three, 2, data);
	r.num_pieces = 3;
	r.pieces_per_key = ADDRESS(counts);
	STATUS(MW_OK, mw_store_do(s, &r, ok, lengths));
	CHECK(ok[0] == 1 && ok[1] == 1 && lengths[0] == 5 && lengths[1] == 6);

	mw_bytes_t to[] = {{ADDRESS(into[0]), 8}, {ADDRESS(into[1]), 5}, {ADDRESS(into[2]), 8}};
	r = request(MW_STORE_GET, three, 3, to);
	STATUS(MW_OK, mw_store_do(s, &r, ok, lengths));
	CHECK(ok[0] == 1 && lengths[0] == 5 && memcmp(into[0], "first\0\0", 8) == 0);
	CHECK(ok[1] == 0 && lengths[1] == 6); /* no room */
	CHECK(ok[2] == 0 && lengths[2] == -1);

	char joined[] = "keykeznotkex"; /* keys of one length, one behind the other */
	mw_bytes_t apart[] = {TEXT("kex"), TEXT("key")};
	r = request(MW_STORE_PUT, apart, 2, data);
	STATUS(MW_OK, mw_store_do(s, &r, ok, lengths));
	r = request(MW_STORE_EXISTS, NULL, 3, NULL);
	r.keys = ADDRESS(joined + 3);
	r.key_bytes = 3;
	STATUS(MW_OK, mw_store_do(s, &r, ok, lengths));
	CHECK(ok[0] == 0 && ok[1] == 0 && ok[2] == 1);
	r.keys = ADDRESS(joined);
	STATUS(MW_OK, mw_store_do(s, &r, ok, lengths));
	CHECK(ok[0] == 1 && ok[1] == 0 && ok[2] == 0);
}

static void test_submit(mw_store_t s)
{
	uint8_t ok[MW_STORE_MAX_KEYS];
	int64_t lengths[MW_STORE_MAX_KEYS];
	uint64_t id = 0, other = 0;
	struct pollfd poller = {.events = POLLIN};
	mw_store_completion_t done = {.size = sizeof done};
	mw_store_request_t r = request(MW_STORE_EXISTS, three, 3, NULL);
	STATUS(MW_OK, mw_store_event_fd(s, &poller.fd));
	STATUS(MW_IN_PROGRESS, mw_store_drain(s, &done, ok, lengths));
	CHECK(poll(&poller, 1, 0) == 0);

	STATUS(MW_OK, mw_store_submit(s, &r, &id));
	CHECK(poll(&poller, 1, 10000) == 1);
	STATUS(MW_OK, mw_store_drain(s, &done, ok, lengths));
	CHECK(done.id == id && done.num_keys == 3 && done.status == MW_OK);
	CHECK(ok[0] == 1 && ok[1] == 1 && ok[2] == 0);
	CHECK(poll(&poller, 1, 0) == 0);
	INVALID("allowed: one that was submitted", mw_store_wait(s, id, 0, &done, ok, lengths));

	STATUS(MW_OK, mw_store_submit(s, &r, &id));
	STATUS(MW_OK, mw_store_submit(s, &r, &other));
	STATUS(MW_OK, mw_store_wait(s, other, -1, &done, ok, lengths));
	CHECK(done.id == other);
	STATUS(MW_OK, mw_store_wait(s, id, -1, &done, ok, lengths));
	CHECK(done.id == id);
	STATUS(MW_IN_PROGRESS, mw_store_drain(s, &done, ok, lengths));
}

/* A segment of the server has 1 MiB. */
static void test_too_large(mw_store_t s)
{
	static char block[1 << 20], said[4096];
	uint8_t ok[2];
	int64_t lengths[2];
	uint64_t id, len;
	mw_store_completion_t done = {.size = sizeof done};
	mw_bytes_t keys[] = {TEXT("large"), TEXT("small")}, data[] = {{ADDRESS(block), sizeof block}, TEXT("some")};
	mw_store_request_t r = request(MW_STORE_PUT, keys, 2, data);
	STATUS(MW_OK, mw_store_do(s, &r, ok, lengths));
	CHECK(ok[0] == 0 && lengths[0] == -1 && ok[1] == 1);
	STATUS(MW_OK, mw_store_warnings(s, said, sizeof said, &len));
	CHECK(len > 0 && len < sizeof said);
	said[len] = 0;
	CHECK(strstr(said, address) != NULL && strstr(said, ": 1048576 bytes given; allowed: 0 to 10") != NULL);
	STATUS(MW_OK, mw_store_submit(s, &r, &id));
	STATUS(MW_OK, mw_store_wait(s, id, -1, &done, ok, lengths));
	CHECK(done.status == MW_OK && ok[0] == 0 && ok[1] == 1);
	CHECK(strstr(done.too_large, address) != NULL && strstr(done.too_large, ": 1048576 bytes given; allowed: 0 to 10") != NULL);
	STATUS(MW_OK, mw_store_warnings(s, said, sizeof said, &len));
	CHECK(len == 0); /* it was said */
	r.op = MW_STORE_DELETE;
	r.num_pieces = 0;
	STATUS(MW_OK, mw_store_submit(s, &r, &id));
	STATUS(MW_OK, mw_store_wait(s, id, -1, &done, ok, lengths));
	CHECK(done.too_large[0] == 0);
	struct { uint32_t size, num_keys; uint64_t id, canary; } old = {.size = 16, .canary = UNTOUCHED}; /* an older caller's */
	STATUS(MW_OK, mw_store_submit(s, &r, &id));
	STATUS(MW_OK, mw_store_wait(s, id, -1, (mw_store_completion_t *)&old, ok, lengths));
	CHECK(old.id == id && old.canary == UNTOUCHED);
}

/* The block "first" where it lies: the file can be read there, and not be written to. */
static void test_place(mw_store_lease_t lease)
{
	char there[5], other = 'x';
	mw_store_place_t place = {.size = sizeof place};
	INVALID("place is NULL", mw_store_lease_place(lease, NULL));
	STATUS(MW_OK, mw_store_lease_place(lease, &place));
	CHECK(place.left_us > 0 && place.left_us <= 30000000);
	CHECK(pread(place.fd, there, 5, (off_t)place.offset) == 5 && memcmp(there, "first", 5) == 0);
	CHECK(pwrite(place.fd, &other, 1, (off_t)place.offset) == -1);
	CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, place.fd, 0) == MAP_FAILED);
	int32_t first = place.fd;
	STATUS(MW_OK, mw_store_lease_place(lease, &place));
	CHECK(place.fd != first);
	CHECK(close(place.fd) == 0);
	CHECK(pread(first, there, 5, (off_t)place.offset) == 5);
	CHECK(close(first) == 0);
}

static void test_lookup(mw_store_t s)
{
	uint64_t leases[3], len = 0;
	int64_t lengths[3];
	uint8_t ok = 9;
	char into[8] = "";
	static char list[MW_STORE_LIST_BYTES];
	mw_bytes_t none = {0, 0}, strange = TEXT("abcdefgh");
	mw_store_request_t r = request(0, three, 3, NULL);
	STATUS(MW_OK, mw_store_lookup(s, &r, leases, lengths));
	CHECK(leases[0] != 0 && leases[1] != 0 && leases[2] == 0);
	CHECK(lengths[0] == 5 && lengths[1] == 6 && lengths[2] == -1);
	mw_store_lease_t a = {leases[0]}, b = {leases[1]};
	lengths[0] = lengths[2] = 0;
	STATUS(MW_OK, mw_store_lookup(s, &r, NULL, lengths));
	CHECK(lengths[0] == 5 && lengths[1] == 6 && lengths[2] == -1);
	INVALID("buffers of 4 bytes given for a block of 5", mw_store_lease_read(a, ADDRESS(into), 4, &ok));
	STATUS(MW_OK, mw_store_lease_read(a, ADDRESS(into), sizeof into, &ok));
	CHECK(ok == 1 && memcmp(into, "first\0\0", 8) == 0);
	test_place(a);
	STATUS(MW_OK, mw_store_lease_close(a));
	SAYS(MW_ERR_HANDLE, "was closed", mw_store_lease_close(a));
	SAYS(MW_ERR_HANDLE, "was closed", mw_store_lease_read(a, ADDRESS(into), sizeof into, &ok));
	ok = 9;
	STATUS(MW_OK, mw_store_lease_end(b, &ok));
	CHECK(ok == 1);
	SAYS(MW_ERR_HANDLE, "was closed", mw_store_lease_end(b, &ok));

	STATUS(MW_OK, mw_store_list(s, &three[1], &none, 0, list, sizeof list, &len));
	CHECK(len == 5 && memcmp(list, "\0\0\1\0b", 5) == 0); /* no cursor; "b" */
	INVALID("cap is 100", mw_store_list(s, &none, &none, 0, list, 100, &len));
	INVALID("the cursor has 1 bytes", mw_store_list(s, &none, &three[0], 0, list, sizeof list, &len));
	INVALID("the cursor names server", mw_store_list(s, &none, &strange, 0, list, sizeof list, &len));
	STATUS(MW_OK, mw_store_flush(s, 0));
	STATUS(MW_OK, mw_store_stats(s, 0, NULL, 0, &len));
	CHECK(len > 100);
	INVALID("timeout_us is -1, allowed 0 to 3600000000", mw_store_list(s, &none, &none, -1, list, sizeof list, &len));
	INVALID("timeout_us is 3600000001", mw_store_stats(s, 3600000001, NULL, 0, &len));
	r.timeout_us = -1;
	INVALID("request->timeout_us is -1", mw_store_lookup(s, &r, leases, lengths));
}

static void test_bad_requests(mw_store_t s)
{
	uint8_t ok[3] = {7, 7, 7};
	int64_t lengths[3];
	uint64_t id = UNTOUCHED;
	mw_bytes_t long_key = {ADDRESS(address), 513}, nowhere = {0, 5}, empty = {0, 0};
	mw_bytes_t data[] = {TEXT("x"), TEXT("y"), TEXT("z")};
	uint32_t many[] = {1, 1, 0x80000000u}, few[] = {1, 1, 0};
	mw_store_request_t r;
	INVALID("request is NULL", mw_store_do(s, NULL, ok, lengths));
#define BAD(words, change) \
	do { \
		r = request(MW_STORE_PUT, three, 3, data); \
		change; \
		INVALID(words, mw_store_do(s, &r, ok, lengths)); \
		INVALID(words, mw_store_submit(s, &r, &id)); \
		CHECK(id == UNTOUCHED && ok[0] == 7); \
	} while (0)
	BAD("request->size", r.size = 12);
	BAD("operation 0x7", r.op = 7);
	BAD("request->op is 4129", r.op = 0x1021);
	BAD("request->num_keys is 0, allowed 1 to 512", r.num_keys = 0);
	BAD("request->num_keys is 513", r.num_keys = 513);
	BAD("request->keys is NULL", r.keys = 0);
	BAD("not aligned", r.keys++);
	BAD("request->keys has one of 513 bytes", (r.num_keys = r.num_pieces = 1, r.keys = ADDRESS(&long_key)));
	BAD("request->keys is NULL", (r.num_keys = r.num_pieces = 1, r.keys = ADDRESS(&nowhere)));
	BAD("key 0 has 0 bytes", (r.num_keys = r.num_pieces = 1, r.keys = ADDRESS(&empty)));
	BAD("request->pieces is NULL", r.pieces = 0);
	BAD("request->num_pieces is 2, allowed 3", r.num_pieces = 2);
	BAD("request->pieces_per_key sum to more than num_pieces", r.pieces_per_key = ADDRESS(many));
	BAD("request->pieces_per_key sum to 2", r.pieces_per_key = ADDRESS(few));
	BAD("request->parent has one of 513 bytes", r.parent = long_key);
	BAD("request->timeout_us is -1", r.timeout_us = -1);
	BAD("request->key_bytes is 513, allowed 0 to 512", r.key_bytes = 513);
	BAD("request->keys is NULL", (r.key_bytes = 3, r.keys = 0));
	BAD("request->reserved is 1, allowed 0", r.reserved = 1);
	BAD("request->hold_us is -1", r.hold_us = -1);
	r = request(MW_STORE_PUT, three, 3, data);
	INVALID("ok is NULL", mw_store_do(s, &r, NULL, lengths));
	INVALID("lengths is NULL", mw_store_do(s, &r, ok, NULL));
	INVALID("id is NULL", mw_store_submit(s, &r, NULL));
#undef BAD
}

static void test_bad_configs(void)
{
	mw_store_t s = {UNTOUCHED};
	mw_store_server_t server = {UNTOUCHED};
	mw_store_config_t c;
	mw_store_server_config_t d;
#define BAD(words, change) \
	do { \
		c = client_config(); \
		change; \
		INVALID(words, mw_store_open(&c, &s)); \
		CHECK(s.id == UNTOUCHED && strstr(mw_last_error(), "00112233") == NULL); \
	} while (0)
	BAD("config->size", c.size = 4);
	BAD("config->key_source is 0", c.key_source = 0);
	BAD("there is no key", c.keys.num_bytes = 0);
	BAD("config->servers has \"\"", c.servers.num_bytes = 0);
	BAD("config->servers has \"host\"", c.servers = TEXT("127.0.0.1:1,host"));
	BAD("config->servers has \"127.0.0.1:65536\"", c.servers = TEXT("127.0.0.1:65536"));
	BAD("config->servers has \"127.0.0.1:0\"", c.servers = TEXT("127.0.0.1:0"));
	BAD("config->servers is NULL", c.servers.address = 0);
	BAD("config->num_requests is 65536", c.num_requests = 65536);
	BAD("config->timeout_us is -1", c.timeout_us = -1);
	BAD("config->connect_timeout_us is -1", c.connect_timeout_us = -1);
	BAD("config->protection is 2", c.protection = 2);
	BAD("config->transport is 3", c.transport = 3);
	BAD("config->reserved is 1", c.reserved = 1);
	BAD("config->salt has 70000 bytes", c.salt.num_bytes = 70000);
#undef BAD
#define BAD(words, change) \
	do { \
		d = server_config(); \
		change; \
		INVALID(words, mw_store_serve(&d, &server)); \
		CHECK(server.id == UNTOUCHED && strstr(mw_last_error(), "00112233") == NULL); \
	} while (0)
	BAD("config->size", d.size = 4);
	BAD("there is no mode without keys", d.key_source = 0);
	BAD("config->listen has \"\"", d.listen.num_bytes = 0);
	BAD("config->listen has \"127.0.0.1\"", d.listen = TEXT("127.0.0.1"));
	BAD("config->listen has \"127.0.0.1:99999\"", d.listen = TEXT("127.0.0.1:99999"));
	BAD("config->metrics has \"9901\"", d.metrics = TEXT("9901"));
	BAD("config->storage is 0", d.storage = 0);
	BAD("config->storage is 3", d.storage = 3);
	BAD("config->path", d.path = TEXT("folder"));
	BAD("config->path", d.storage = MW_STORAGE_FILE);
	BAD("config->capacity_bytes", d.capacity_bytes = 0);
	BAD("config->capacity_bytes", d.capacity_bytes = UINT64_MAX);
	BAD("config->durability is 3", d.durability = 3);
	BAD("config->durability is MW_DURABILITY_EACH", d.durability = MW_DURABILITY_EACH); /* in memory */
	BAD("config->protection is 2", d.protection = 2);
	BAD("config->num_clients is 65536", d.num_clients = 65536);
	BAD("config->flush_every_us is -1", d.flush_every_us = -1);
	BAD("config->flush_every_us is 10000001, allowed 0 to 10000000", d.flush_every_us = 10000001);
	BAD("flush_bytes 18446744073709551615", d.flush_bytes = UINT64_MAX);
#undef BAD
	d = server_config();
	d.listen = TEXT("192.0.2.1:0"); /* no address of this machine */
	REFUSED(MW_ERR_SYSTEM, mw_store_serve(&d, &server));
	d = server_config();
	d.metrics = TEXT("192.0.2.1:0");
	REFUSED(MW_ERR_SYSTEM, mw_store_serve(&d, &server));
	CHECK(server.id == UNTOUCHED);
}

static void test_ends(mw_store_t s, mw_store_server_t server)
{
	uint8_t ok[3];
	int64_t lengths[3];
	uint64_t leases[3], len = UNTOUCHED;
	char log[4096];
	mw_store_completion_t done = {.size = sizeof done};
	mw_store_request_t r = request(MW_STORE_EXISTS, three, 3, NULL);
	STATUS(MW_OK, mw_store_lookup(s, &r, leases, lengths));
	STATUS(MW_OK, mw_store_close(s));
	SAYS(MW_ERR_HANDLE, "store client 1 was closed", mw_store_close(s));
	REFUSED(MW_ERR_HANDLE, mw_store_do(s, &r, ok, lengths));
	REFUSED(MW_ERR_HANDLE, mw_store_drain(s, &done, ok, lengths));
	REFUSED(MW_ERR_HANDLE, mw_store_lease_close((mw_store_lease_t){leases[0]}));
	STATUS(MW_OK, mw_store_server_log(server, log, sizeof log, &len));
	INVALID("cap is 10", mw_store_server_log(server, log, 10, &len));
	STATUS(MW_OK, mw_store_server_stats(server, NULL, 0, &len));
	STATUS(MW_OK, mw_store_server_metrics(server, NULL, 0, &len));
	CHECK(len == 0);
	STATUS(MW_OK, mw_store_server_reload(server)); /* keys that are fixed stay */
	INVALID("timeout_us is -2", mw_store_server_close(server, -2));
	INVALID("timeout_us is -2", mw_store_server_drain(server, -2));
	STATUS(MW_OK, mw_store_server_drain(server, 1000000));
	STATUS(MW_OK, mw_store_server_drain(server, 0));
	STATUS(MW_OK, mw_store_server_stats(server, NULL, 0, &len));
	STATUS(MW_OK, mw_store_server_log(server, log, sizeof log, &len));
	STATUS(MW_OK, mw_store_server_close(server, 1000000));
	SAYS(MW_ERR_HANDLE, "store server 1 was closed", mw_store_server_close(server, 0));
	REFUSED(MW_ERR_HANDLE, mw_store_server_reload(server));
}

int main(void)
{
	mw_store_server_t server = serve();
	mw_store_config_t c = client_config();
	mw_store_t s = {0};
	three[0] = TEXT("a");
	three[1] = TEXT("b");
	three[2] = TEXT("c");
	STATUS(MW_OK, mw_store_open(&c, &s));
	test_put_and_get(s);
	test_submit(s);
	test_too_large(s);
	test_lookup(s);
	test_bad_requests(s);
	test_bad_configs();
	test_put_and_get(s); /* nothing has changed */
	test_ends(s, server);
	puts("store: ok");
	return 0;
}
