// Package boundaries holds the rules of the tree that a compiler does not
// check, and the tests that hold the tree to them: which package may import
// which, where unsafe, cgo, purego and x/sys may appear, that the headers and
// the library agree, that files are formatted and short. The tables of rules
// are checked, too: they allow no more than the tree needs.
package boundaries

// Module is the path of the module that is checked.
const Module = "github.com/moewire/moewire"

// MaxLines is the length that no Go file, tests aside, may exceed.
const MaxLines = 400

// MaxFunctionLines is the length that no function of the product may exceed, from its func to
// its last brace.
const MaxFunctionLines = 40

type layer struct {
	pkg     string
	imports []string
}

type room struct {
	path   string // import path; a trailing /... matches all below it
	within []string
	except []string
}

// layers lists each package, lowest first, with the packages of this module
// that it may import: of those above it in the list, the ones that it needs. A
// package that is not listed may not exist; one that several rows match belongs
// to the first. "x/..." stands for x and all below it. Test files may import
// anything in core, so what only they need is not listed.
var layers = []layer{
	// Without anything of this module.
	{"core/origin", nil},
	{"core/internal/dl", nil},
	{"core/internal/standby", nil},
	{"core/internal/testenv", nil},
	{"core/op", nil},
	{"core/pool", nil},
	{"core/group/rankset", nil},

	// The numbers that ranks share.
	{"core/group/membership", []string{"core/group/rankset"}},

	// What everything else speaks of, and what writes it for other languages.
	{"core/ep/protocol", []string{"core/group/rankset", "core/group/membership"}},
	{"core/ep/protocol/generate", nil},
	{"core/limits", []string{"core/op", "core/group/rankset", "core/ep/protocol"}},
	{"core/ep/layout", []string{"core/group/rankset", "core/ep/protocol", "core/limits"}},

	{"core/internal/safego", []string{"core/origin"}},
	{"core/internal/sweep", []string{"core/internal/safego"}},
	{"core/internal/sys", []string{"core/origin"}},
	{"core/internal/accept", []string{"core/internal/sys"}},
	{"core/internal/gmac", []string{"core/internal/sys"}},
	{"core/internal/sha256pair", []string{"core/internal/sys"}},
	{"core/internal/libcuda", []string{"core/origin", "core/internal/dl"}},
	{"core/internal/libnvrtc", []string{"core/internal/dl"}},
	{"core/internal/libibverbs", []string{"core/origin", "core/internal/dl"}},
	{"core/telemetry", []string{"core/group/rankset", "core/group/membership", "core/ep/protocol", "core/internal/sys"}},
	{"core/wire", []string{"core/internal/gmac", "core/internal/sys"}},

	// The block store.
	{"core/store/tag", []string{"core/internal/gmac"}},
	{"core/store/record", []string{"core/store/tag", "core/internal/sha256pair"}},
	{"core/store/index", []string{"core/store/record"}},
	{"core/store/medium", []string{"core/store/record", "core/internal/sys"}},
	{"core/store", []string{"core/store/tag", "core/store/record", "core/store/index", "core/store/medium"}},
	{"core/store/message", []string{"core/store/tag"}},
	{"core/store/rights", []string{"core/wire", "core/store/message"}},
	{"core/store/stream", []string{"core/wire"}},
	{"core/store/local", []string{"core/store/message", "core/internal/sys"}},
	{"core/store/metrics", []string{"core/internal/safego", "core/internal/sys"}},
	{"core/store/server", []string{
		"core/internal/accept", "core/internal/safego", "core/internal/sys", "core/pool", "core/wire",
		"core/store", "core/store/tag", "core/store/message", "core/store/stream", "core/store/local",
		"core/store/metrics", "core/store/rights",
	}},
	{"core/store/server/servertest", []string{"core/store", "core/store/tag", "core/store/server"}},
	{"core/store/client", []string{
		"core/internal/safego", "core/internal/sys", "core/pool", "core/wire",
		"core/store/tag", "core/store/message", "core/store/stream", "core/store/local",
	}},

	// The interfaces, and what implements them. core/ep/cpu sees the former only.
	{"core/device", []string{"core/ep/protocol"}},
	{"core/device/cpu", []string{"core/device", "core/ep/protocol", "core/limits", "core/internal/..."}},
	{"core/device/cuda/kernels", []string{"core/internal/libnvrtc"}},
	{"core/device/cuda/images", []string{"core/device/cuda/kernels", "core/internal/..."}},
	{"core/device/cuda/images/prebuild", []string{
		"core/device/cuda/images", "core/device/cuda/kernels", "core/internal/...",
	}},
	// The queue by which kernels ask the host for something.
	{"core/device/cuda/fifo", []string{"core/ep/protocol"}},
	{"core/device/cuda/fifo/fifotest", []string{"core/device/cuda/fifo"}},
	{"core/device/cuda", []string{"core/group/rankset", "core/ep/layout", "core/ep/protocol", "core/limits", "core/internal/..."}},
	// Times the engine on a GPU, and what it is compared with.
	{"core/device/cuda/gpubench/baseline", []string{"core/device/cuda/kernels", "core/internal/..."}},
	{"core/device/cuda/gpubench/probe", []string{"core/device/cuda/kernels", "core/internal/..."}},
	{"core/device/cuda/gpubench", []string{
		"core/group/membership", "core/device/cuda", "core/device/cuda/images", "core/ep/layout",
		"core/ep/protocol", "core/internal/...", "core/device/cuda/gpubench/baseline", "core/device/cuda/gpubench/probe",
	}},
	{"core/device/cuda/cudatest", []string{"core/device/cuda/images", "core/internal/..."}},

	// What moves bytes between ranks that cannot map one another's memory.
	{"core/transport", nil},
	// What the ranks of a group share, as engines see it.
	{"core/group/domain", []string{"core/group/rankset", "core/transport"}},
	{"core/transport/transporttest", []string{
		"core/group/rankset", "core/group/membership", "core/transport", "core/group/domain", "core/internal/testenv",
	}},
	// Carriers.
	{"core/transport/fake", []string{"core/transport", "core/internal/safego"}},
	{"core/transport/tcp", []string{"core/limits", "core/transport", "core/wire", "core/internal/..."}},
	{"core/transport/shmem", []string{"core/transport", "core/internal/..."}},
	{"core/transport/verbs", []string{"core/transport", "core/internal/..."}},
	// Messages between ranks, over any carrier.
	{"core/link", []string{"core/group/rankset", "core/limits", "core/transport", "core/group/domain", "core/wire", "core/internal/..."}},

	// Groups: of one process, of the processes of one host, of several hosts.
	{"core/group/inproc", []string{"core/group/rankset", "core/group/membership", "core/transport", "core/group/domain"}},
	{"core/group/shm", []string{
		"core/group/rankset", "core/group/membership", "core/transport", "core/group/domain", "core/internal/...",
	}},
	{"core/group/multihost", []string{
		"core/group/rankset", "core/group/membership",
		"core/transport", "core/group/domain", "core/group/shm", "core/link", "core/wire", "core/internal/...",
	}},
	// Device memory of one rank in the processes of others.
	{"core/group/cudaipc", []string{
		"core/group/rankset", "core/transport", "core/group/domain", "core/device/cuda", "core/internal/...",
	}},
	// Memory of links that kernels fill and read.
	{"core/group/cudaring", []string{"core/transport", "core/group/domain", "core/device/cuda", "core/internal/sys"}},
	// Messages for kernels.
	{"core/group/proxy", []string{
		"core/group/rankset", "core/ep/protocol", "core/group/domain", "core/device/cuda/fifo", "core/internal/safego",
	}},

	// Connections to many peers, over any carrier.
	{"core/endpoint", []string{"core/transport", "core/internal/safego"}},
	// One carrier for programs that have no ranks, only peers.
	{"core/fabric", []string{
		"core/limits", "core/transport", "core/endpoint", "core/op", "core/wire", "core/internal/...",
	}},

	// What callers of dispatch and combine see, and what both engines share.
	{"core/ep", []string{"core/group/membership", "core/ep/layout", "core/ep/protocol", "core/limits", "core/group/domain", "core/telemetry"}},
	{"core/ep/suspicion", []string{
		"core/group/rankset", "core/group/membership", "core/ep/layout", "core/ep/protocol", "core/group/domain", "core/telemetry",
	}},
	// The engines, which do not see each other.
	{"core/ep/cpu", []string{
		"core/group/rankset", "core/group/membership", "core/ep", "core/ep/suspicion", "core/ep/layout", "core/ep/protocol", "core/limits", "core/op", "core/telemetry",
		"core/group/domain", "core/device", "core/internal/safego",
	}},
	{"core/ep/routing", []string{"core/group/membership", "core/ep", "core/ep/layout", "core/ep/protocol", "core/limits", "core/op", "core/device"}},
	{"core/ep/cuda", []string{
		"core/group/rankset", "core/group/membership", "core/ep", "core/ep/suspicion", "core/ep/layout", "core/ep/protocol", "core/limits",
		"core/group/domain", "core/group/cudaipc", "core/group/proxy", "core/device/cuda", "core/device/cuda/fifo", "core/internal/safego", "core/telemetry",
	}},

	// Puts a rank together: a configuration becomes a group and an engine.
	{"core/node", []string{
		"core/ep", "core/ep/cpu", "core/ep/cuda", "core/ep/routing", "core/ep/layout", "core/ep/protocol", "core/device/cpu", "core/device/cuda", "core/device/cuda/images",
		"core/transport", "core/group/domain", "core/group/cudaring", "core/group/multihost", "core/group/shm", "core/transport/tcp",
		"core/transport/verbs", "core/group/membership", "core/group/rankset", "core/limits", "core/link", "core/op", "core/telemetry", "core/wire",
	}},

	{"capi", []string{"core/..."}},
	{"examples/...", []string{"core/..."}},
	{"tests/model/search", nil},
	{"tests/model", []string{"tests/model/search"}},
	{"tests/model/remote", []string{"tests/model/search"}},
	{"tests/...", nil},
}

// rooms says where an import is allowed that would be dangerous anywhere else.
// Test files are held to it, too.
var rooms = []room{
	// Memory bugs get few addresses.
	{
		path: "unsafe",
		within: []string{
			"core/internal/...", "core/group/inproc", "core/transport/verbs",
			"core/device/cpu", "core/device/cuda", "core/device/cuda/cudatest",
			"core/device/cuda/gpubench/...", "capi",
		},
	},
	{path: "C", within: []string{"capi", "core/device/cpu"}},
	{path: "github.com/ebitengine/purego/...", within: []string{"core/internal/dl"}},
	{path: "golang.org/x/sys/...", within: []string{"core/internal/sys"}},
	// Its types are wider than the words they wrap, so that one laid over
	// shared memory would cover its neighbour.
	{
		path:   "go.uber.org/atomic",
		within: []string{"..."},
		except: []string{"core/transport/...", "core/group/...", "core/internal/sys"},
	},
}
