package main

// #include "internal.h"
import "C"

import (
	"github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/node"
	"github.com/moewire/moewire/core/telemetry"
	"github.com/moewire/moewire/core/transport/tcp"
)

// What the headers repeat of the core. A difference does not compile: an array index
// other than 0 is out of range.
var (
	_ = [1]struct{}{C.MW_ABI_VERSION - node.ABIVersion: {}}
	_ = [1]struct{}{C.MW_MAX_RANKS - rankset.MaxRanks: {}}
	_ = [1]struct{}{C.MW_MAX_TOPK - protocol.MaxTopK: {}}
	_ = [1]struct{}{C.MW_MAX_EXTRAS - protocol.NumExtras: {}}
	_ = [1]struct{}{C.MW_MAX_EXTRA_BYTES - protocol.MaxExtraBytes: {}}
	_ = [1]struct{}{C.MW_MAX_RECORDS - protocol.MaxRecords: {}}
	_ = [1]struct{}{C.MW_DISPATCH_FP8 - protocol.FlagFP8: {}}
	_ = [1]struct{}{C.MW_DISPATCH_HAS_MORE - protocol.FlagHasMore: {}}
	_ = [1]struct{}{C.MW_DISPATCH_FP32_OUTPUTS - protocol.FlagFP32Outputs: {}}
	_ = [1]struct{}{C.MW_DISPATCH_FLAT - protocol.FlagFlat: {}}
	_ = [1]struct{}{C.MW_DISPATCH_NO_ROUTING - protocol.FlagNoRouting: {}}
	_ = [1]struct{}{C.MW_DISPATCH_PRE_REDUCE - protocol.FlagPreReduce: {}}
	_ = [1]struct{}{C.MW_RECORD_DISPATCH - protocol.RecordDispatch: {}}
	_ = [1]struct{}{C.MW_RECORD_COMBINE - protocol.RecordCombine: {}}
	_ = [1]struct{}{C.MW_TRANSPORT_AUTO - multihost.Auto: {}}
	_ = [1]struct{}{C.MW_TRANSPORT_SHM - multihost.Shm: {}}
	_ = [1]struct{}{C.MW_TRANSPORT_TCP - multihost.TCP: {}}
	_ = [1]struct{}{C.MW_TRANSPORT_RDMA - multihost.RDMA: {}}
	_ = [1]struct{}{C.MW_PHASE_SENT - ep.PhaseSent: {}}
	_ = [1]struct{}{C.MW_PHASE_DONE - ep.PhaseDone: {}}
	_ = [1]struct{}{C.MW_STORES_AUTO - cpu.StoresAuto: {}}
	_ = [1]struct{}{C.MW_STORES_CACHED - cpu.StoresCached: {}}
	_ = [1]struct{}{C.MW_STORES_STREAMING - cpu.StoresStreaming: {}}
	_ = [1]struct{}{C.MW_HUGE_PAGES_NEVER - shm.HugeNever: {}}
	_ = [1]struct{}{C.MW_HUGE_PAGES_ADVISE - shm.HugeAdvise: {}}
	_ = [1]struct{}{C.MW_HUGE_PAGES_REQUIRE - shm.HugeRequire: {}}
	_ = [1]struct{}{C.MW_ZERO_COPY_AUTO - tcp.ZeroCopyAuto: {}}
	_ = [1]struct{}{C.MW_ZERO_COPY_ON - tcp.ZeroCopyOn: {}}
	_ = [1]struct{}{C.MW_ZERO_COPY_OFF - tcp.ZeroCopyOff: {}}
	_ = [1]struct{}{C.MW_LINK_TCP - telemetry.CarrierTCP: {}}
	_ = [1]struct{}{C.MW_LINK_VERBS - telemetry.CarrierVerbs: {}}
	_ = [1]struct{}{C.MW_LINK_UP - multihost.LinkUp: {}}
	_ = [1]struct{}{C.MW_LINK_UNRESPONSIVE - multihost.LinkUnresponsive: {}}
	_ = [1]struct{}{C.MW_LINK_BROKEN - multihost.LinkBroken: {}}
	_ = [1]struct{}{C.MW_LINK_ENDED - multihost.LinkEnded: {}}
	_ = [1]struct{}{C.MW_LINK_OUT - multihost.LinkOut: {}}
	_ = [1]struct{}{C.MW_EVICT_SIEVE - endpoint.SIEVE: {}}
	_ = [1]struct{}{C.MW_EVICT_FIFO - endpoint.FIFO: {}}
)
