/* The exported functions of moewire_store.h: see shim.c. */
#include "shim.h"

mw_status_t mw_store_open(const mw_store_config_t *config, mw_store_t *store)
{
	mw_store_config_t c;
	NOT_FORKED();
	READ_SIZED(c, config);
	NOT_NULL(store);
	return mwiStoreOpen(&c, &store->id);
}

mw_status_t mw_store_warnings(mw_store_t store, char *buf, uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(buf);
	NOT_NULL(len);
	return mwiStoreWarnings(store.id, buf, cap, len);
}

mw_status_t mw_store_close(mw_store_t store)
{
	NOT_FORKED();
	return mwiStoreClose(store.id);
}

mw_status_t mw_store_do(mw_store_t store, const mw_store_request_t *request, uint8_t *ok, int64_t *lengths)
{
	mw_store_request_t r;
	NOT_FORKED();
	READ_SIZED(r, request);
	NOT_NULL(ok);
	NOT_NULL(lengths);
	return mwiStoreDo(store.id, &r, ok, lengths);
}

mw_status_t mw_store_submit(mw_store_t store, const mw_store_request_t *request, uint64_t *id)
{
	mw_store_request_t r;
	NOT_FORKED();
	READ_SIZED(r, request);
	NOT_NULL(id);
	return mwiStoreSubmit(store.id, &r, id);
}

mw_status_t mw_store_drain(mw_store_t store, mw_store_completion_t *done, uint8_t *ok, int64_t *lengths)
{
	mw_store_completion_t d;
	mw_status_t status;
	NOT_FORKED();
	CHECK_OUT(done);
	NOT_NULL(ok);
	NOT_NULL(lengths);
	memset(&d, 0, sizeof d);
	status = mwiStoreDrain(store.id, &d, ok, lengths);
	if (status == MW_OK)
		write_sized(done, &d, sizeof d);
	return status;
}

mw_status_t mw_store_wait(mw_store_t store, uint64_t id, int64_t timeout_us, mw_store_completion_t *done,
                          uint8_t *ok, int64_t *lengths)
{
	mw_store_completion_t d;
	mw_status_t status;
	NOT_FORKED();
	CHECK_OUT(done);
	NOT_NULL(ok);
	NOT_NULL(lengths);
	memset(&d, 0, sizeof d);
	status = mwiStoreWait(store.id, id, timeout_us, &d, ok, lengths);
	if (status == MW_OK)
		write_sized(done, &d, sizeof d);
	return status;
}

mw_status_t mw_store_event_fd(mw_store_t store, int32_t *fd)
{
	NOT_FORKED();
	NOT_NULL(fd);
	return mwiStoreEventFD(store.id, fd);
}

mw_status_t mw_store_lookup(mw_store_t store, const mw_store_request_t *request, uint64_t *leases,
                            int64_t *lengths)
{
	mw_store_request_t r;
	NOT_FORKED();
	READ_SIZED(r, request);
	NOT_NULL(lengths);
	return mwiStoreLookup(store.id, &r, leases, lengths);
}

mw_status_t mw_store_lease_read(mw_store_lease_t lease, uint64_t address, uint64_t num_bytes, uint8_t *ok)
{
	NOT_FORKED();
	NOT_NULL(ok);
	return mwiStoreLeaseRead(lease.id, address, num_bytes, ok);
}

mw_status_t mw_store_lease_place(mw_store_lease_t lease, mw_store_place_t *place)
{
	mw_store_place_t p;
	mw_status_t status;
	NOT_FORKED();
	CHECK_OUT(place);
	memset(&p, 0, sizeof p);
	status = mwiStoreLeasePlace(lease.id, &p);
	if (status == MW_OK)
		write_sized(place, &p, sizeof p);
	return status;
}

mw_status_t mw_store_lease_end(mw_store_lease_t lease, uint8_t *kept)
{
	NOT_FORKED();
	NOT_NULL(kept);
	return mwiStoreLeaseEnd(lease.id, kept);
}

mw_status_t mw_store_lease_close(mw_store_lease_t lease)
{
	NOT_FORKED();
	return mwiStoreLeaseClose(lease.id);
}

mw_status_t mw_store_list(mw_store_t store, const mw_bytes_t *prefix, const mw_bytes_t *cursor,
                          int64_t timeout_us, void *buf, uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(prefix);
	NOT_NULL(cursor);
	NOT_NULL(buf);
	NOT_NULL(len);
	return mwiStoreList(store.id, (mw_bytes_t *)prefix, (mw_bytes_t *)cursor, timeout_us, buf, cap, len);
}

mw_status_t mw_store_flush(mw_store_t store, int64_t timeout_us)
{
	NOT_FORKED();
	return mwiStoreFlush(store.id, timeout_us);
}

mw_status_t mw_store_stats(mw_store_t store, int64_t timeout_us, char *buf, uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(len);
	return mwiStoreStats(store.id, timeout_us, buf, cap, len);
}

mw_status_t mw_store_serve(const mw_store_server_config_t *config, mw_store_server_t *server)
{
	mw_store_server_config_t c;
	NOT_FORKED();
	READ_SIZED(c, config);
	NOT_NULL(server);
	return mwiStoreServe(&c, &server->id);
}

mw_status_t mw_store_server_address(mw_store_server_t server, char *buf, uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(len);
	return mwiStoreServerAddress(server.id, buf, cap, len);
}

mw_status_t mw_store_server_metrics(mw_store_server_t server, char *buf, uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(len);
	return mwiStoreServerMetrics(server.id, buf, cap, len);
}

mw_status_t mw_store_server_stats(mw_store_server_t server, char *buf, uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(len);
	return mwiStoreServerStats(server.id, buf, cap, len);
}

mw_status_t mw_store_server_log(mw_store_server_t server, char *buf, uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(buf);
	NOT_NULL(len);
	return mwiStoreServerLog(server.id, buf, cap, len);
}

mw_status_t mw_store_server_reload(mw_store_server_t server)
{
	NOT_FORKED();
	return mwiStoreServerReload(server.id);
}

mw_status_t mw_store_server_drain(mw_store_server_t server, int64_t timeout_us)
{
	NOT_FORKED();
	return mwiStoreServerDrain(server.id, timeout_us);
}

mw_status_t mw_store_server_close(mw_store_server_t server, int64_t timeout_us)
{
	NOT_FORKED();
	return mwiStoreServerClose(server.id, timeout_us);
}
