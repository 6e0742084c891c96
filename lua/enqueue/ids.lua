--[[ ids: checks ids that other clients choose for their jobs. An id is put between quotes into events, and joined
to other names in indexes, so an invalid id would damage the log for all jobs of the call. ]]

local ID_LENGTH = 32         -- length of the ids that rq-core makes
local ID_LENGTH_MAX = 128

--- Return whether a text may name a job. Each byte of the text costs Lua some 40 instructions, so the caller does not
--- check ids of ID_LENGTH: a client that wants to damage the log does not need an id for that.
local function is_id(text)
  return #text <= ID_LENGTH_MAX and text:find('^[%w_.:-]+$') ~= nil
end
