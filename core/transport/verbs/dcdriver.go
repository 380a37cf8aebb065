package verbs

import (
	"github.com/moewire/moewire/core/internal/libibverbs"
)

// mlx5 is the one driver that has DC.
type mlx5 struct {
	*libibverbs.Mlx5
	t *Transport
}

// findDC is a step of open: it decides before any address is told.
func (t *Transport) findDC() error {
	if !t.config.DC {
		t.dc = DC{Why: "not asked for"}
		return nil
	}
	lib, err := loadMlx5(t.lib)
	if err != nil {
		t.dc = DC{Why: err.Error()}
		return nil
	}
	driver := &mlx5{lib, t}
	if t.dc, err = t.detectDC(driver); err != nil || !t.dc.Detected {
		return err
	}
	port, err := t.openDC(driver)
	if err != nil {
		t.dc = noDC("not all initiators", err)
		return port.close()
	}
	t.dcPort = port
	return nil
}

// loadMlx5 is a variable for tests, which have no such library.
var loadMlx5 = libibverbs.LoadMlx5

func (m *mlx5) supported() bool { return m.IsSupported(m.t.ctx) }

func (m *mlx5) createSRQ(depth, pieces int) (libibverbs.SRQ, error) {
	return m.CreateSRQ(m.t.pd, &libibverbs.SRQInitAttr{MaxWR: uint32(depth), MaxSGE: uint32(pieces)})
}

func (m *mlx5) destroySRQ(srq libibverbs.SRQ) error { return m.DestroySRQ(srq) }

func (m *mlx5) createTarget(srq libibverbs.SRQ, key uint64) (libibverbs.QP, error) {
	return m.CreateQP(m.t.ctx, &libibverbs.QPInitAttrEx{
		SendCQ: m.t.cq, RecvCQ: m.t.cq, SRQ: srq, QPType: libibverbs.QPTypeDriver,
		CompMask: libibverbs.QPInitAttrPD, PD: m.t.pd,
	}, &libibverbs.Mlx5QPInitAttr{
		CompMask: libibverbs.Mlx5QPInitAttrDC, DCType: libibverbs.Mlx5DCTypeDCT, DCTAccessKey: key,
	})
}

func (m *mlx5) createInitiator() (libibverbs.QP, error) {
	return m.CreateQP(m.t.ctx, &libibverbs.QPInitAttrEx{
		SendCQ: m.t.cq, RecvCQ: m.t.cq, QPType: libibverbs.QPTypeDriver,
		Cap: libibverbs.QPCap{
			MaxSendWR: uint32(m.t.limits.SendDepth), MaxSendSGE: uint32(m.t.limits.NumPieces),
			MaxInlineData: uint32(m.t.limits.InlineBytes),
		},
		CompMask: libibverbs.QPInitAttrPD | libibverbs.QPInitAttrSendOpsFlags, PD: m.t.pd,
		SendOpsFlags: libibverbs.QPExWithRDMAWrite | libibverbs.QPExWithRDMAWriteWithImm |
			libibverbs.QPExWithSend | libibverbs.QPExWithRDMARead,
	}, &libibverbs.Mlx5QPInitAttr{CompMask: libibverbs.Mlx5QPInitAttrDC, DCType: libibverbs.Mlx5DCTypeDCI})
}

func (m *mlx5) modify(qp libibverbs.QP, attr *libibverbs.QPAttr, mask uint32) error {
	return m.t.lib.ModifyQP(qp, attr, mask)
}

func (m *mlx5) destroy(qp libibverbs.QP) error { return m.t.lib.DestroyQP(qp) }
