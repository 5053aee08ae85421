package iscsi

import "fmt"

// LoginStatus is Status-Class and Status-Detail (RFC 7143 section 11.13.5), the class in the high byte.
type LoginStatus uint16

// Login statuses.
const (
	LoginSuccess            LoginStatus = 0x0000
	LoginMovedTemporarily   LoginStatus = 0x0101
	LoginMovedPermanently   LoginStatus = 0x0102
	LoginInitiatorError     LoginStatus = 0x0200
	LoginAuthFailed         LoginStatus = 0x0201
	LoginNotAuthorized      LoginStatus = 0x0202
	LoginNotFound           LoginStatus = 0x0203
	LoginTargetRemoved      LoginStatus = 0x0204
	LoginUnsupportedVersion LoginStatus = 0x0205
	LoginTooManyConnections LoginStatus = 0x0206
	LoginMissingParameter   LoginStatus = 0x0207
	LoginCannotInclude      LoginStatus = 0x0208
	LoginSessionType        LoginStatus = 0x0209
	LoginNoSession          LoginStatus = 0x020a
	LoginInvalidRequest     LoginStatus = 0x020b
	LoginTargetError        LoginStatus = 0x0300
	LoginUnavailable        LoginStatus = 0x0301
	LoginOutOfResources     LoginStatus = 0x0302
)

var loginSentences = map[LoginStatus]string{
	LoginSuccess:            "the login succeeded",
	LoginMovedTemporarily:   "the target has moved for a time to another address",
	LoginMovedPermanently:   "the target has moved for good to another address",
	LoginInitiatorError:     "the target found a mistake in our login",
	LoginAuthFailed:         "the target did not accept the user name or secret, or wants authentication",
	LoginNotAuthorized:      "this initiator may not use the target",
	LoginNotFound:           "there is no target of that name at this address",
	LoginTargetRemoved:      "the target has been removed",
	LoginUnsupportedVersion: "the target speaks another version of iSCSI",
	LoginTooManyConnections: "the session has as many connections as the target allows",
	LoginMissingParameter:   "the login lacked the initiator's or the target's name",
	LoginCannotInclude:      "the target cannot add this connection to the session",
	LoginSessionType:        "the target does not offer this type of session",
	LoginNoSession:          "the session to be joined does not exist",
	LoginInvalidRequest:     "a request that login does not allow was sent",
	LoginTargetError:        "the target has a hardware or software error",
	LoginUnavailable:        "the target is not in operation at present",
	LoginOutOfResources:     "the target has no room for another session",
}

// Class is the Status-Class.
func (s LoginStatus) Class() uint8 { return uint8(s >> 8) }

func (s LoginStatus) String() string {
	if t, ok := loginSentences[s]; ok {
		return t
	}
	return fmt.Sprintf("login status 0x%04x", uint16(s))
}
