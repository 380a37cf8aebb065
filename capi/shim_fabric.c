/* The exported functions of moewire_fabric.h: see shim.c. */
#include "shim.h"

mw_status_t mw_fabric_create(const mw_fabric_config_t *config, mw_fabric_t *fabric)
{
	mw_fabric_config_t c;
	NOT_FORKED();
	READ_SIZED(c, config);
	NOT_NULL(fabric);
	return mwiFabricCreate(&c, &fabric->id);
}

mw_status_t mw_fabric_report(mw_fabric_t fabric, char *buf, uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(len);
	return mwiFabricReport(fabric.id, buf, cap, len);
}

mw_status_t mw_fabric_next_handshake(mw_fabric_t fabric, int64_t timeout_us, uint64_t *peer, void *buf,
                                uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(peer);
	NOT_NULL(buf);
	NOT_NULL(len);
	return mwiFabricNextHandshake(fabric.id, timeout_us, peer, buf, cap, len);
}

mw_status_t mw_fabric_deliver(mw_fabric_t fabric, uint64_t peer, const void *handshake, uint64_t len)
{
	NOT_FORKED();
	NOT_NULL(handshake);
	return mwiFabricDeliver(fabric.id, peer, (void *)handshake, len);
}

mw_status_t mw_fabric_connect(mw_fabric_t fabric, uint64_t peer, int64_t timeout_us)
{
	NOT_FORKED();
	return mwiFabricConnect(fabric.id, peer, timeout_us);
}

mw_status_t mw_fabric_disconnect(mw_fabric_t fabric, uint64_t peer)
{
	NOT_FORKED();
	return mwiFabricDisconnect(fabric.id, peer);
}

mw_status_t mw_fabric_close(mw_fabric_t fabric, int64_t timeout_us)
{
	NOT_FORKED();
	return mwiFabricClose(fabric.id, timeout_us);
}

mw_status_t mw_region_register(mw_fabric_t fabric, uint64_t address, uint64_t num_bytes,
                               uint32_t access, mw_region_t *region)
{
	NOT_FORKED();
	NOT_NULL(region);
	return mwiRegionRegister(fabric.id, address, num_bytes, access, &region->id);
}

mw_status_t mw_region_remote(mw_region_t region, mw_remote_t *remote)
{
	mw_remote_t r;
	mw_status_t status;
	NOT_FORKED();
	CHECK_OUT(remote);
	memset(&r, 0, sizeof r);
	status = mwiRegionRemote(region.id, &r);
	if (status == MW_OK)
		write_sized(remote, &r, sizeof r);
	return status;
}

mw_status_t mw_region_close(mw_region_t region)
{
	NOT_FORKED();
	return mwiRegionClose(region.id);
}

mw_status_t mw_transfer_post(mw_fabric_t fabric, const mw_transfer_args_t *args,
                             mw_transfer_t *transfer)
{
	mw_transfer_args_t a;
	NOT_FORKED();
	READ_SIZED(a, args);
	NOT_NULL(transfer);
	return mwiTransferPost(fabric.id, &a, &transfer->id);
}

mw_status_t mw_transfer_wait(mw_transfer_t transfer, int32_t until, int64_t timeout_us,
                             mw_transfer_result_t *result)
{
	mw_transfer_result_t r;
	mw_status_t status;
	NOT_FORKED();
	CHECK_OUT(result);
	memset(&r, 0, sizeof r);
	status = mwiTransferWait(transfer.id, until, timeout_us, &r);
	if (status >= MW_OK)
		write_sized(result, &r, sizeof r);
	return status;
}

mw_status_t mw_transfer_error(mw_transfer_t transfer, char *buf, uint64_t cap, uint64_t *len)
{
	NOT_FORKED();
	NOT_NULL(len);
	return mwiTransferError(transfer.id, buf, cap, len);
}

mw_status_t mw_transfer_cancel(mw_transfer_t transfer)
{
	NOT_FORKED();
	return mwiTransferCancel(transfer.id);
}

mw_status_t mw_transfer_close(mw_transfer_t transfer)
{
	NOT_FORKED();
	return mwiTransferClose(transfer.id);
}
