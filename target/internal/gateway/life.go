package gateway

import "github.com/sluice-storage/sluice/internal/state"

// State says what a gateway is to a volume. The gateway's lock guards it.
type State uint8

const (
	// Standby says that another gateway owns the volume, or none does. What needs the medium is refused.
	Standby State = iota
	// Claiming says that the steps of a takeover are made. No I/O is begun.
	Claiming
	// Owner says that no other gateway's I/O can reach the medium any more.
	Owner
	// Releasing says that no I/O is begun. What is under way is waited for, and then the lock is given back.
	Releasing
	// Losing says that another may be the owner. What is under way fails, and the librados instance is shut down.
	Losing
	// Closed says that the gateway has ended.
	Closed
)

var volumeLife = state.New("a volume of a gateway", []string{"standby", "claiming", "owner", "releasing", "losing", "closed"}, state.Next[State]{
	Standby:   {Claiming, Closed},
	Claiming:  {Standby, Owner},
	Owner:     {Releasing, Losing},
	Releasing: {Standby, Losing},
	Losing:    {Standby},
}).Ending(Closed)

func (s State) String() string { return volumeLife.Name(s) }
