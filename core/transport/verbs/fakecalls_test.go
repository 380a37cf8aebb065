package verbs

import (
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libibverbs"
)

var timeZero time.Time

// fakeLibrary is the table of C functions in front of the current fake.
var fakeLibrary = sync.OnceValue(func() *dl.Library {
	inline := dl.Fake(map[string]any{
		"post":   func(qp, wr, bad uintptr) uintptr { return current.post(qp, wr, bad) },
		"poll":   func(_, n, wcs uintptr) uintptr { return current.poll(n, wcs) },
		"notify": func(_, _ uintptr) uintptr { current.mu.Lock(); current.armed = true; current.mu.Unlock(); return 0 },
	})
	addr := func(name string) uintptr {
		f, err := inline.Lookup(name)
		if err != nil {
			panic(err)
		}
		return uintptr(f)
	}
	post, poll, notify := addr("post"), addr("poll"), addr("notify")
	free := func(name, kind string) func(uintptr) uintptr {
		return func(object uintptr) uintptr { return current.destroy(name, kind, object) }
	}
	make := func(name, kind string) func(uintptr) uintptr {
		return func(uintptr) uintptr { return current.create(name, kind, 64) }
	}
	return dl.Fake(map[string]any{
		"ibv_get_device_list": func(n uintptr) uintptr {
			*dl.At[int32](n) = 1
			list := current.add("list", 16)
			*dl.At[uintptr](list) = list
			return list
		},
		"ibv_free_device_list": func(list uintptr) uintptr { delete(current.alive, list); return 0 },
		"ibv_get_device_name": func(uintptr) uintptr {
			name := current.add("name", 8)
			delete(current.alive, name)
			copy(unsafe.Slice(dl.At[byte](name), 8), "fake0\x00")
			return name
		},
		"ibv_open_device": func(uintptr) uintptr {
			ctx := current.create("open_device", "context", unsafe.Sizeof(libibverbs.ContextHead{}))
			if ctx != 0 {
				*dl.At[libibverbs.ContextHead](ctx) = libibverbs.ContextHead{
					PollCQ: poll, ReqNotifyCQ: notify, PostSend: post, PostRecv: post,
					AsyncFD: int32(current.async.Raw()),
				}
			}
			return ctx
		},
		"ibv_close_device": free("close_device", "context"),
		"ibv_query_device": func(_, attr uintptr) uintptr {
			*dl.At[libibverbs.DeviceAttr](attr) = libibverbs.DeviceAttr{
				MaxMRSize: 1 << 40, MaxQP: 1000, MaxQPWR: 1000, MaxSGE: 4, MaxSGERd: 4, MaxCQE: 10000,
				MaxQPRdAtom: 7, MaxQPInitRdAtom: 9, PhysPortCnt: 1,
			}
			return uintptr(current.failure("query_device"))
		},
		"ibv_query_port": func(_, _, attr uintptr) uintptr {
			*dl.At[libibverbs.PortAttr](attr) = libibverbs.PortAttr{
				State: current.portState("fake0"), ActiveMTU: 4, MaxMsgSz: 1 << 30, LID: 17, LinkLayer: current.linkType,
			}
			return uintptr(current.failure("query_port"))
		},
		"ibv_query_gid": func(_, _, index, gid uintptr) uintptr {
			*dl.At[[16]byte](gid) = [16]byte{0: 0xfe, 15: byte(index)}
			return uintptr(current.failure("query_gid"))
		},
		"ibv_alloc_pd":   make("alloc_pd", "pd"),
		"ibv_dealloc_pd": free("dealloc_pd", "pd"),
		"ibv_reg_mr": func(_, addr, n, _ uintptr) uintptr {
			mr := current.create("reg_mr", "mr", unsafe.Sizeof(libibverbs.MRBody{}))
			if mr != 0 {
				*dl.At[libibverbs.MRBody](mr) = libibverbs.MRBody{Addr: addr, Length: uint64(n), LKey: uint32(mr), RKey: uint32(mr)}
			}
			return mr
		},
		"ibv_dereg_mr": free("dereg_mr", "mr"),
		"ibv_create_comp_channel": func(uintptr) uintptr {
			ch := current.create("create_comp_channel", "channel", 64)
			if ch != 0 {
				dl.At[libibverbs.CompChannelBody](ch).FD = int32(current.notify.Raw())
			}
			return ch
		},
		"ibv_destroy_comp_channel": free("destroy_comp_channel", "channel"),
		"ibv_create_cq":            func(_, _, _, _, _ uintptr) uintptr { return current.create("create_cq", "cq", 64) },
		"ibv_destroy_cq":           free("destroy_cq", "cq"),
		"ibv_get_cq_event":         func(_, cq, _ uintptr) uintptr { return current.nextCompletionEvent(cq) },
		"ibv_ack_cq_events":        func(_, _ uintptr) uintptr { return 0 },
		"ibv_create_qp": func(_, _ uintptr) uintptr {
			qp := current.create("create_qp", "qp", unsafe.Sizeof(libibverbs.QPHead{}))
			if qp != 0 {
				current.nextQP++
				dl.At[libibverbs.QPHead](qp).QPNum = current.nextQP
			}
			return qp
		},
		"ibv_modify_qp":       func(qp, attr, mask uintptr) uintptr { return current.modify(qp, attr, uint32(mask)) },
		"ibv_destroy_qp":      free("destroy_qp", "qp"),
		"ibv_get_async_event": func(_, event uintptr) uintptr { return current.nextEvent(event) },
		"ibv_ack_async_event": func(uintptr) uintptr {
			current.mu.Lock()
			defer current.mu.Unlock()
			current.unacked--
			current.calls = append(current.calls, "ack")
			return 0
		},
	})
})

// repeated is a list of one error number, n times.
func repeated(errno syscall.Errno, n int) (list []syscall.Errno) {
	for range n {
		list = append(list, errno)
	}
	return list
}
