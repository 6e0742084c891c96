--[[ history_names: remembers the names that the server's history has had, while no data was lost.

A server that gets its first replica gives its history another name (`master_replid`) and forgets the previous name
(`master_replid2` is all zeros); so does a server whose last replica left long ago. A promoted replica changes the name,
too, but keeps the previous one in `master_replid2`. So a name that changed while this library was loaded, with nothing
in `master_replid2`, is another name of the same data: loading other data, from a file or from a primary, loads the
library again. (A primary that was a replica meanwhile and lost no data may look the same. But if the other primary
changed a queue, the queue has the name of that primary's history.)

A script that is sent with EVALSHA remembers nothing. There, such a name is reported as a possible loss.

Kept: NAMES count
]]

local NAMES_MAX = 100
local ZEROS = ('0'):rep(40)

local NAMES, count = {}, 0   -- names of this history

--- Note the present name of the server's history. `info` is the reply to INFO replication; nil if the server gave none.
local function note_history_name(replid, info)
  if NAMES[replid] then
    return
  end
  local went_on = info and info:find('role:master', 1, true) and info:find('master_replid2:' .. ZEROS, 1, true)
  if not went_on or count == NAMES_MAX then
    NAMES, count = {}, 0
  end
  NAMES[replid], count = true, count + 1
end

--- Return whether the server's history has this name, or had it before.
local function is_history_name(replid)
  return NAMES[replid] ~= nil
end
