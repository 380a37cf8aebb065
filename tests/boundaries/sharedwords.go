package boundaries

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// reader is a file that may read memory that other processes can write, and what makes a wild
// value harmless there.
type reader struct{ file, why string }

// sharedReaders are all of them. A word is read once, and compared with what its writer can have
// stored by then, before it counts, addresses or sizes anything.
var sharedReaders = []reader{
	// Accessors: they find a word, and read none.
	{"core/group/shm/region.go", "finds words and bytes of a mapping, within its bounds"},
	{"core/group/multihost/memory.go", "finds words of memory of this process alone, which a peer's hardware may fill"},
	{"core/group/cudaring/ring.go", "finds words of rings that kernels fill"},
	{"core/group/inproc/hosts.go", "finds words of the heap: ranks of one process, for tests"},
	{"core/group/domain/dmabuf.go", "registers bytes, and reads none"},
	{"core/transport/shmem/endpoint.go", "finds words of a lane, which peer.go and run.go check"},

	// Memory of a rank, as the engine of the CPU sees it.
	{"core/ep/cpu/shared.go", "parameters carry a check; open and y_ready are found for others"},
	{"core/ep/cpu/violation.go", "open, arrive, counted, done, params and this rank's own words, each with what is allowed"},
	{"core/ep/cpu/received.go", "counters and layout: rows that do not overlap, at most as many as were reserved"},
	{"core/ep/cpu/send.go", "what a counter held goes through protocol.Fits, which cannot wrap; bytesOf finds rows"},
	{"core/ep/cpu/row_order.go", "order is compared with the operation; places in the layout go through protocol.Fits"},
	{"core/ep/cpu/reopen.go", "a counter is clipped to the rows of an expert"},
	{"core/ep/cpu/combine.go", "y_ready: operations up to this one, one combine more than are finished"},
	{"core/ep/cpu/slabs.go", "stores words of an own slab anew, whatever they hold"},
	{"core/ep/cpu/waiters.go", "own words are compared with what was stored"},

	// Messages from other hosts: lists are copied before they are checked.
	{"core/ep/cpu/remote_receive.go", "heads and lists are copied, and the copies are checked and used"},
	{"core/ep/cpu/remote_outputs.go", "stores rows of outputs as many as this rank has asked for"},
	{"core/ep/cpu/remote_control_words.go", "private pages with what messages have said: takeControlWords has checked it"},

	// The failure detector, and membership.
	{"core/ep/suspicion/peer.go", "finds waits_for, since and beat; a wild quiesced promises nothing"},
	{"core/ep/suspicion/suspicion.go", "sets are cut to members, a later since makes the rank itself a cause"},
	{"core/ep/suspicion/detector.go", "members, cut to the ranks that are present"},
	{"core/group/membership/guard.go", "clears bits that no rank can have set"},
	{"core/group/multihost/listener.go", "members: an epoch, which the others compare"},
	{"core/group/multihost/view.go", "members is compared with what was agreed on; own words are sent as they are"},

	// Processes of one host.
	{"core/group/shm/domain.go", "finds members; a bell that is wild costs a look"},
	{"core/group/shm/member.go", "header and slab table: entries carry a check, ids and sizes are bounded by the file"},
	{"core/group/cudaipc/view.go", "a length is clipped, and what follows is parsed with bounds"},
	{"core/group/cudaipc/offer.go", "stores what this rank offers"},

	// Telemetry: numbers are shown, and bound nothing.
	{"core/telemetry/area_layout.go", "finds words of an area"},
	{"core/telemetry/stats.go", "lists are as long as the caller says; the number of experts is clipped"},
	{"core/telemetry/record.go", "records that no rank can have stored are left out"},

	// The carrier over shared memory.
	{"core/transport/shmem/bell.go", "bits of endpoints, looked up in a table of this process"},
	{"core/transport/shmem/peer.go", "every word of a peer is checked, or costs the peer its endpoint"},
	{"core/transport/shmem/run.go", "how a receive has ended is checked against what was posted"},
	{"core/transport/shmem/table.go", "a process keeps its own table for itself; peer.go reads those of others"},

	// The block store.
	{"core/store/local/view.go", "finds bytes within a mapping"},
	{"core/store/client/fetch.go", "blocks are compared with their tags"},
	{"core/store/client/place.go", "blocks are compared with their tags"},
	{"core/store/server/put.go", "a block is copied before it is looked at"},

	{"capi/tensors.go", "addresses of rows for the caller, out of sizes of this rank's own"},
}

// checkReaders looks for files that read shared memory and are not in the table, and for rows
// of the table that no file needs.
func checkReaders(files []goFile, table []reader) (wrong []string) {
	reads := map[string]string{}
	for _, f := range files {
		if what := readsShared(f); what != "" {
			reads[f.name] = what
		}
	}
	for name, what := range reads {
		if !slices.ContainsFunc(table, func(r reader) bool { return r.file == name }) {
			wrong = append(wrong, fmt.Sprintf("%s: %s; a file that reads memory of others says in sharedReaders how it checks that", name, what))
		}
	}
	for i, r := range table {
		switch {
		case reads[r.file] == "":
			wrong = append(wrong, fmt.Sprintf("sharedReaders: %s reads no shared memory", r.file))
		case r.why == "":
			wrong = append(wrong, fmt.Sprintf("sharedReaders: %s has no reason", r.file))
		case slices.ContainsFunc(table[:i], func(b reader) bool { return b.file == r.file }):
			wrong = append(wrong, fmt.Sprintf("sharedReaders: %s is listed twice", r.file))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// readsShared says how a product file reads shared memory; "" if it does not.
func readsShared(f goFile) (what string) {
	product := strings.HasPrefix(f.pkg, "core/") && f.pkg != "core/transport/transporttest" || f.pkg == "capi"
	if f.test || !product {
		return ""
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), f.name, f.content, parser.SkipObjectResolution)
	if err != nil {
		return err.Error()
	}
	stored := map[ast.Expr]bool{} // words that are only written
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, is := n.(*ast.CallExpr)
		if !is {
			return true
		}
		method, is := call.Fun.(*ast.SelectorExpr)
		if !is {
			return true
		}
		if method.Sel.Name == "Store" {
			stored[method.X] = true
		}
		if how := readsWith(call, method); how != "" && !stored[call] {
			what = how
		}
		return true
	})
	return what
}

// readsWith recognizes the ways to shared memory: a word of a segment, its bytes, and a load of
// an atomic that a function has found. Private atomics are fields.
func readsWith(call *ast.CallExpr, method *ast.SelectorExpr) string {
	_, found := method.X.(*ast.CallExpr)
	switch name, args := method.Sel.Name, len(call.Args); {
	case name == "Word" && args == 1, isName(method.X, "sys") && name == "Word":
		return "takes a word of a segment"
	case name == "Bytes" && args == 2 && !isName(method.X, "record"): // a size of the store's
		return "takes bytes of a segment"
	case found && slices.Contains([]string{"Load", "Swap", "CompareAndSwap"}, name):
		return "loads a word that a function has found"
	}
	return ""
}
