// SPDX-License-Identifier: Apache-2.0

package gpusemconv

// Static facts of a board on hw.gpu.info, besides AttrHWModel, AttrGPUIndex and
// AttrPCIBusID.
const (
	AttrHWSerial        = "hw.serial_number"
	AttrHWDriver        = "hw.driver_version"
	AttrHWFirmware      = "hw.firmware_version"
	AttrBoardPartNumber = "gpu.board.part_number"
	AttrInfoROM         = "gpu.inforom.version"
	// AttrModuleID is the GPU's position on the baseboard.
	AttrModuleID = "gpu.module.id"
)
