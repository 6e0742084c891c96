--[[ history_names: the names that the server's history has had while it went on.

A server that gets its first replica gives its history another name (`master_replid`) and forgets the name before
(`master_replid2` is all zeros); so does one whose last replica left long ago. A promoted replica goes on under another name,
too, but `master_replid2` has the one before. So a name that changed while this library was loaded, with nothing in
`master_replid2`, is another name of the same data: to load other data, from a file or from a primary, loads the library again.
(A primary that was a replica meanwhile and lost nothing of its own may look the same; a queue of which the other primary
changed anything has that one's name.)

A script that is sent with EVALSHA remembers nothing. There such a name is told as a loss that may have been.

Kept: NAMES count
]]

local NAMES_MAX = 100
local ZEROS = ('0'):rep(40)

local NAMES, count = {}, 0   -- names of this history

--- Note the name that the server has now. `info` is what it says of its replication; nil if it says nothing.
local function note_name(replid, info)
  if NAMES[replid] then
    return
  end
  local went_on = info and info:find('role:master', 1, true) and info:find('master_replid2:' .. ZEROS, 1, true)
  if not went_on or count == NAMES_MAX then
    NAMES, count = {}, 0
  end
  NAMES[replid], count = true, count + 1
end

--- Whether this is a name that the server's history has, or has had.
local function is_a_name(replid)
  return NAMES[replid] ~= nil
end
