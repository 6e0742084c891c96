--[[ ids: what other clients may call their jobs. An id is put between quotes into events, and joined to other names in indexes:
what is no name would spoil the log for all jobs of the call.
]]

local ID_LENGTH = 32         -- of the ids that rq-core makes
local ID_LENGTH_MAX = 128

--- Whether a text may name a job. Each byte of it costs Lua some 40 instructions, so ids as long as those that rq-core makes are
--- not looked at: a client that wants to spoil the log needs no id for it.
local function is_id(text)
  return #text <= ID_LENGTH_MAX and text:find('^[%w_.:-]+$') ~= nil
end
