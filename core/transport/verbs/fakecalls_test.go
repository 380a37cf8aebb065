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

// fakeLibrary is the table of C functions in front of the current fake;
// oldLibrary has only those that every libibverbs has.
var (
	fakeLibrary = sync.OnceValue(func() *dl.Library { return dl.Fake(fakeFunctions()) })
	oldLibrary  = sync.OnceValue(func() *dl.Library {
		functions := fakeFunctions()
		for _, newer := range []string{"ibv_reg_mr_iova2", "_ibv_query_gid_table", "ibv_reg_dmabuf_mr"} {
			delete(functions, newer)
		}
		return dl.Fake(functions)
	})
)

func fakeFunctions() map[string]any {
	inline := dl.Fake(map[string]any{
		"post":   func(qp, wr, bad uintptr) uintptr { return current.post(qp, wr, bad) },
		"recv":   func(qp, wr, bad uintptr) uintptr { return current.postRecvs(qp, wr, bad) },
		"poll":   func(cq, n, wcs uintptr) uintptr { return current.poll(cq, n, wcs) },
		"notify": func(cq, _ uintptr) uintptr { return current.arm(cq) },
	})
	addr := func(name string) uintptr {
		f, err := inline.Lookup(name)
		if err != nil {
			panic(err)
		}
		return uintptr(f)
	}
	post, recv, poll, notify := addr("post"), addr("recv"), addr("poll"), addr("notify")
	fillDCI := fakeDCIFunctions()
	free := func(name, kind string) func(uintptr) uintptr {
		return func(object uintptr) uintptr { return current.destroy(name, kind, object) }
	}
	make := func(name, kind string) func(uintptr) uintptr {
		return func(of uintptr) uintptr { return current.create(name, kind, of, 64) }
	}
	return map[string]any{
		"ibv_get_device_list":  func(n uintptr) uintptr { return current.list(n) },
		"ibv_free_device_list": func(list uintptr) uintptr { return current.drop(list) },
		"ibv_get_device_name":  func(device uintptr) uintptr { return current.name(device) },
		"ibv_open_device": func(device uintptr) uintptr {
			ctx := current.create("open_device", "context", device-1, unsafe.Sizeof(libibverbs.ContextHead{}))
			if ctx != 0 {
				*dl.At[libibverbs.ContextHead](ctx) = libibverbs.ContextHead{
					Device: 0xd1ce,
					PollCQ: poll, ReqNotifyCQ: notify, PostSend: post, PostRecv: recv, PostSRQRecv: recv,
					AsyncFD: int32(current.deviceOf(ctx).async.Raw()),
				}
			}
			return ctx
		},
		"ibv_close_device": free("close_device", "context"),
		"ibv_query_device": func(_, attr uintptr) uintptr {
			current.mu.Lock()
			defer current.mu.Unlock()
			*dl.At[libibverbs.DeviceAttr](attr) = libibverbs.DeviceAttr{
				MaxMRSize: 1 << 40, MaxQP: 1000, MaxQPWR: 1000, MaxSGE: 4, MaxSGERd: 4, MaxCQE: 10000,
				MaxQPRdAtom: 7, MaxQPInitRdAtom: 9, PhysPortCnt: 1,
			}
			return uintptr(current.failure("query_device"))
		},
		"ibv_query_port": func(ctx, _, attr uintptr) uintptr {
			current.mu.Lock()
			defer current.mu.Unlock()
			*dl.At[libibverbs.PortAttr](attr) = libibverbs.PortAttr{
				State: current.of(ctx).port, ActiveMTU: 4, MaxMsgSz: 1 << 30, LID: 17, LinkLayer: current.linkType,
			}
			return uintptr(current.failure("query_port"))
		},
		"ibv_query_gid": func(_, _, index, gid uintptr) uintptr {
			current.mu.Lock()
			defer current.mu.Unlock()
			*dl.At[[16]byte](gid) = [16]byte{0: 0xfe, 15: byte(index)}
			return uintptr(current.failure("query_gid"))
		},
		"_ibv_query_gid_table": func(_, to, most, _, _ uintptr) uintptr {
			if current.gids == nil {
				return ^uintptr(syscall.EOPNOTSUPP) + 1
			}
			return uintptr(copy(unsafe.Slice(dl.At[libibverbs.GIDEntry](to), most), current.gids))
		},
		"ibv_alloc_pd":   make("alloc_pd", "pd"),
		"ibv_dealloc_pd": free("dealloc_pd", "pd"),
		"ibv_reg_mr": func(pd, addr, n, access uintptr) uintptr {
			mr := current.create("reg_mr", "mr", pd, unsafe.Sizeof(libibverbs.MRBody{}))
			if mr != 0 {
				*dl.At[libibverbs.MRBody](mr) = libibverbs.MRBody{Addr: addr, Length: uint64(n), LKey: uint32(mr), RKey: uint32(mr)}
				current.addMR(mr, fakeMR{addr, n, uint32(access)})
			}
			return mr
		},
		"ibv_create_ah":               func(pd, attr uintptr) uintptr { return current.createAH(pd, attr) },
		"ibv_destroy_ah":              free("destroy_ah", "ah"),
		"ibv_qp_to_qp_ex":             func(qp uintptr) uintptr { return qp },
		"mlx5dv_qp_ex_from_ibv_qp_ex": func(qp uintptr) uintptr { return qp + fakeOwnPart },
		"ibv_create_srq":              func(pd, _ uintptr) uintptr { return current.create("create_srq", "srq", pd, 64) },
		"ibv_destroy_srq":             free("destroy_srq", "srq"),
		"mlx5dv_is_supported": func(device uintptr) uintptr {
			if device == 0xd1ce && !current.notMlx5 {
				return 0xf01 // a C bool is the lowest byte
			}
			return 0xf00
		},
		"mlx5dv_create_qp": func(ctx, attr, own uintptr) uintptr {
			qp := current.create("mlx5dv_create_qp", "qp", ctx, fakeOwnPart+unsafe.Sizeof(libibverbs.Mlx5QPExHead{}))
			if qp != 0 {
				fillDCI(qp)
				current.addDC(fakeDC{qp, *dl.At[libibverbs.QPInitAttrEx](attr), *dl.At[libibverbs.Mlx5QPInitAttr](own)})
			}
			return qp
		},
		"ibv_reg_dmabuf_mr": func(pd, off, n, iova, fd, access uintptr) uintptr {
			if int32(fd) < 0 && len(current.failures["reg_dmabuf_mr"]) == 0 {
				dl.SetErrno(syscall.EBADF)
				return 0
			}
			mr := current.create("reg_dmabuf_mr", "mr", pd, unsafe.Sizeof(libibverbs.MRBody{}))
			if mr != 0 {
				current.dmabufs = append(current.dmabufs, fakeDmabuf{off, n, iova, access})
				*dl.At[libibverbs.MRBody](mr) = libibverbs.MRBody{Addr: iova, Length: uint64(n), LKey: uint32(mr), RKey: uint32(mr)}
				current.addMR(mr, fakeMR{iova, n, uint32(access)})
			}
			return mr
		},
		"ibv_dereg_mr": free("dereg_mr", "mr"),
		"ibv_create_comp_channel": func(ctx uintptr) uintptr {
			ch := current.create("create_comp_channel", "channel", ctx, 64)
			if ch != 0 {
				dl.At[libibverbs.CompChannelBody](ch).FD = int32(current.deviceOf(ctx).notify.Raw())
			}
			return ch
		},
		"ibv_destroy_comp_channel": free("destroy_comp_channel", "channel"),
		"ibv_create_cq":            func(ctx, _, _, _, _ uintptr) uintptr { return current.create("create_cq", "cq", ctx, 64) },
		"ibv_destroy_cq":           free("destroy_cq", "cq"),
		"ibv_get_cq_event":         func(channel, cq, _ uintptr) uintptr { return current.nextCompletionEvent(channel, cq) },
		"ibv_ack_cq_events":        func(_, _ uintptr) uintptr { return 0 },
		"ibv_create_qp": func(pd, _ uintptr) uintptr {
			qp := current.create("create_qp", "qp", pd, unsafe.Sizeof(libibverbs.QPHead{}))
			if qp != 0 {
				current.addRC(qp)
			}
			return qp
		},
		"ibv_modify_qp":       func(qp, attr, mask uintptr) uintptr { return current.modify(qp, attr, uint32(mask)) },
		"ibv_destroy_qp":      free("destroy_qp", "qp"),
		"ibv_get_async_event": func(ctx, event uintptr) uintptr { return current.nextEvent(ctx, event) },
		"ibv_ack_async_event": func(uintptr) uintptr { return current.ack() },
	}
}

// list makes the list of devices: their numbers, from 1.
func (f *fakeLib) list(n uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	devices := len(f.devices)
	*dl.At[int32](n) = int32(devices)
	list := f.add("list", 16*uintptr(devices))
	for i := range uintptr(devices) {
		*dl.At[uintptr](list + 8*i) = i + 1
	}
	return list
}

// drop frees a list.
func (f *fakeLib) drop(list uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.alive, list)
	return 0
}

func (f *fakeLib) name(device uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := f.add("name", 8)
	delete(f.alive, name)
	copy(unsafe.Slice(dl.At[byte](name), 8), f.devices[device-1].name+"\x00")
	return name
}

// deviceOf is of, for a caller that does not hold the lock.
func (f *fakeLib) deviceOf(object uintptr) *fakeDevice {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.of(object)
}

// repeated is a list of one error number, n times.
func repeated(errno syscall.Errno, n int) (list []syscall.Errno) {
	for range n {
		list = append(list, errno)
	}
	return list
}
